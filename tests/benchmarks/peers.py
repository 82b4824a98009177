"""The contenders: dps in each mode, and linear models of other libraries.

Each has the settings that are fair to it. Shared is the objective: mean log loss and the penalty of
``LogisticRegression(C=1)``. Everything else is at their defaults.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from dps import LinearClassifier
from measure import MODES, TooSlow, limit, timed


def in_each_mode(X: Any, y: Any) -> dict[str, Callable[[int], Any]]:
    """dps at its defaults in each mode, by name; called with the number of the turn."""

    def fit(mode: str, turn: int) -> LinearClassifier:
        return LinearClassifier(mode=mode, random_state=turn).fit(X, y)

    return {f"dps {mode}": partial(fit, mode) for mode in MODES}


def seconds_of_a_pass(model: Any) -> dict[str, float]:
    """The median over passes, of dps."""
    if not isinstance(model, LinearClassifier):
        return {}
    return {"pass": float(np.median([record["seconds"] for record in model.history_]))}


def sgd(rows: int, turn: int) -> SGDClassifier:
    return SGDClassifier(loss="log_loss", alpha=1 / rows, random_state=turn)


def incremental(rows: int, turn: int) -> Any:
    """One pass, partition after partition."""
    from dask_ml.wrappers import Incremental

    return Incremental(sgd(rows, turn), assume_equal_chunks=True)


#: Newton knows no penalty, but is quick.
SOLVERS = ("lbfgs", "newton", "gradient_descent", "proximal_grad", "admm")


def fastest_solver(
    X: Any, y: Any, above_optimum: Callable[[Any], float], patience: float, enough: float = 1e-4
) -> tuple[str, str]:
    """The first of dask-ml's solvers at the optimum, and a remark on each.

    None is given longer than the fastest so far, or than `patience` seconds.
    """
    from dask_ml.linear_model import LogisticRegression

    best, words = "lbfgs", []
    for solver in SOLVERS:
        try:
            with limit(patience):
                seconds, model = timed(
                    lambda name=solver: LogisticRegression(solver=name).fit(X, y)
                )
        except TooSlow as error:
            words.append(f"{solver} {error}")
            continue
        above = above_optimum(model)
        words.append(f"{solver} {seconds:.1f} s ({above:.1e} above)")
        if above <= enough:
            best, patience = solver, seconds
    return best, ", ".join(words)


class VowpalWabbit:
    """Two passes over a text file, everything else at its defaults.

    Rows are shuffled as its manual asks. One pass is quicker and ends at a worse loss; its
    own rule of when to stop takes longer and ends no better.
    """

    passes = 2

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name)

    def write(self, name: str, X: Any, y: Any, seed: int | None = None) -> None:
        """Rows of CSR in its text format; with a seed in a random order."""
        order = np.arange(len(y))
        if seed is not None:
            np.random.default_rng(seed).shuffle(order)
        with open(self._path / name, "w") as file:
            for start in range(0, len(y), 100_000):  # a list of all words would take gigabytes
                chosen = order[start : start + 100_000]
                block, labels = X[chosen], np.where(y[chosen], "1 |", "-1 |").tolist()
                pairs = zip(block.indices.tolist(), block.data.tolist(), strict=True)
                words = [f"{column}:{value:.6g}" for column, value in pairs]
                ends = block.indptr.tolist()
                for row, label in enumerate(labels):
                    file.write(f"{label} {' '.join(words[ends[row] : ends[row + 1]])}\n")

    def _run(self, *arguments: str) -> None:
        from vowpalwabbit import Workspace

        Workspace(arg_list=["--quiet", *arguments]).finish()

    def fit(self, name: str) -> VowpalWabbit:
        self._run("--loss_function", "logistic", "--passes", str(self.passes), "--holdout_off",
                  "--data", str(self._path / name), "-f", str(self._path / "model"),
                  "--cache_file", str(self._path / "cache"), "-k")  # fmt: skip
        return self

    def probabilities(self, name: str) -> Any:
        self._run("--testonly", "--link", "logistic", "--data", str(self._path / name),
                  "-i", str(self._path / "model"), "-p", str(self._path / "out"))  # fmt: skip
        return np.loadtxt(self._path / "out")
