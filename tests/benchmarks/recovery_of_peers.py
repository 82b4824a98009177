"""The cost of one killed worker: dps, Ray Train (PyTorch DDP) and xgboost.dask, in one run.

    python tests/benchmarks/recovery_of_peers.py [--repeat K]

Each trains on two worker processes. One is killed half-way through an epoch (a boosting round of
xgboost). Printed are the seconds from the SIGKILL to the end of the first epoch that follows, and
the number of closed epochs that are trained again, besides the interrupted one. Ray restarts its
workers from a checkpoint that it takes after each epoch. Ray and xgboost are installed by hand:
nothing else needs them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from measure import cluster, installed, options, table

EPOCHS, STEPS, ROWS, COLUMNS = 25, 100, 20_000, 20
#: Noted in place of an epoch where training begins again.
AGAIN = -1
#: Epochs before the kill.
BEFORE = 8
#: Seconds after which nothing more is expected.
LIMIT = 90.0


def rows() -> tuple[Any, Any]:
    """Two classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS)).astype("float32")
    return X, (X.sum(axis=1) > 0).astype("int64")


class Notes:
    """Notes of all processes on closed epochs: when, which, from whom.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, epoch: int) -> None:
        """An epoch has ended here."""
        with self.path.open("a") as file:
            file.write(f"{time.time()} {epoch} {os.getpid()}\n")

    def all(self) -> list[tuple[float, int, int]]:
        """Seconds, epoch and process of each note."""
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [(float(at), int(epoch), int(pid)) for at, epoch, pid in lines]


class Killer(threading.Thread):
    """Kills a process half an epoch after some of them.

    Parameters
    ----------
    notes : Notes
    victim : callable
        The process.
    """

    def __init__(self, notes: Notes, victim: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._notes, self._victim = notes, victim
        self.at = 0.0
        self.start()

    def run(self) -> None:
        """Wait, and kill."""
        while len({epoch for _, epoch, _ in self._notes.all()}) <= BEFORE:
            time.sleep(0.001)
        first, last = (self._notes.all()[at][0] for at in (0, -1))
        pid = self._victim()
        time.sleep(0.5 * (last - first) / BEFORE)
        self.at = time.time()
        os.kill(pid, signal.SIGKILL)

    def found(self, error: BaseException | None) -> dict[str, Any]:
        """Seconds to the next new epoch, and what was trained again."""
        notes = self._notes.all()
        begun = [at for at, epoch, _ in notes if epoch == AGAIN and at > self.at]
        after = [(at, epoch) for at, epoch, _ in notes if begun and at > begun[0] and epoch > 0]
        before = {epoch for at, epoch, _ in notes if not begun or at < begun[0]}
        return {
            "seconds": after[0][0] - self.at if after else None,
            "again": len(before & {epoch for _, epoch in after}),
            "end": "the fit ends" if error is None else f"{type(error).__name__}",
        }


def with_dps(notes: Notes) -> Killer:
    """Train a linear model."""
    from dps import LinearClassifier

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said = record.getMessage()
            if said.startswith("epoch "):
                notes.add(int(said.split()[1].strip(":")))
            elif "begun again" in said:
                notes.add(AGAIN)

    logging.getLogger("dps").addHandler(Heard(logging.INFO))
    logging.getLogger("dps").setLevel(logging.INFO)
    with cluster(2) as client:
        killer = Killer(notes, lambda: client.run(os.getpid)[max(client.nthreads())])
        LinearClassifier(
            optimizer="sgd", learning_rate=0.01, tol=None, max_iter=100 * EPOCHS, n_replicas=2,
            batch_size=ROWS // STEPS, client=client, random_state=0,
        ).fit(*rows())  # fmt: skip
    return killer


def with_ray(notes: Notes) -> Killer:
    """Train the same by PyTorch."""
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer

    def loop() -> None:
        import ray.train
        import torch
        from ray.train.torch import prepare_model

        X, y = (torch.from_numpy(values) for values in rows())
        rank = ray.train.get_context().get_world_rank()
        X, y = X[rank::2], y[rank::2].float()
        model = prepare_model(torch.nn.Linear(COLUMNS, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        first, size = 1, ROWS // STEPS // 2
        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                state = torch.load(Path(folder) / "state.pt")
            model.load_state_dict(state["model"])
            first = state["epoch"] + 1
            notes.add(AGAIN)
        for epoch in range(first, EPOCHS + 1):
            for start in range(0, len(X), size):
                optimizer.zero_grad()
                out = model(X[start : start + size])[:, 0]
                torch.nn.functional.binary_cross_entropy_with_logits(
                    out, y[start : start + size]
                ).backward()
                optimizer.step()
            with tempfile.TemporaryDirectory() as folder:
                torch.save({"model": model.state_dict(), "epoch": epoch}, f"{folder}/state.pt")
                made = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
                ray.train.report({"epoch": epoch}, checkpoint=made)
            notes.add(epoch)

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    killer = Killer(notes, lambda: notes.all()[-1][2])
    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            loop,
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(
                storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=3)
            ),
        ).fit()
    return killer


def with_xgboost(notes: Notes) -> Killer:
    """Boost trees on the same rows."""
    import dask.array as da
    import xgboost.dask
    from xgboost.callback import TrainingCallback

    class Noting(TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            notes.add(epoch)
            return False

    X, y = rows()
    with cluster(2) as client:
        data = xgboost.dask.DaskDMatrix(
            client, da.from_array(X, chunks=(ROWS // 2, -1)), da.from_array(y, chunks=ROWS // 2)
        )
        killer = Killer(notes, lambda: notes.all()[-1][2])
        xgboost.dask.train(
            client, {"objective": "binary:logistic", "nthread": 1}, data, 20 * EPOCHS,
            callbacks=[Noting()],
        )  # fmt: skip
    return killer


SYSTEMS = {
    "dps": (with_dps, "dps"),
    "Ray Train": (with_ray, "ray"),
    "xgboost.dask": (with_xgboost, "xgboost"),
}


def alone(name: str) -> None:
    """Run one of them in this process, and print what was found."""
    with tempfile.TemporaryDirectory() as folder:
        notes, killers = Notes(Path(folder) / "notes"), []
        started = Killer.__init__

        def noted(self: Killer, *args: Any) -> None:
            killers.append(self)
            started(self, *args)

        Killer.__init__ = noted  # type: ignore[method-assign]
        errors: list[BaseException] = []

        def run() -> None:
            try:
                SYSTEMS[name][0](notes)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(LIMIT)
        found = killers[0].found(errors[0] if errors else None)
        if thread.is_alive():
            found["end"] = f"it hangs for {LIMIT:.0f} s"
        print(json.dumps(found), flush=True)
    os._exit(0)


def main() -> None:
    if "--alone" in sys.argv:
        alone(sys.argv[-1])
    chosen = options(__doc__, repeat=3)
    lines = []
    for name, (_, module) in SYSTEMS.items():
        if not installed(name, module):
            continue
        found = []
        for _ in range(chosen.repeat):
            done = subprocess.run(
                [sys.executable, __file__, "--alone", name],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=2 * LIMIT,
            )  # fmt: skip
            found.append(json.loads(done.stdout.splitlines()[-1]))
        seconds = [one["seconds"] for one in found if one["seconds"] is not None]
        lines.append(
            (
                name,
                f"{np.median(seconds):.2f}" if seconds else "never",
                f"{np.median([one['again'] for one in found]):.0f}" if seconds else "",
                ", ".join(sorted({one["end"] for one in found})),
            )
        )
    table(("one of two workers is killed", "seconds", "epochs again", ""), lines)


if __name__ == "__main__":
    main()
