"""A check of a user's model on a few rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dps.models.arrays import Arrays
from dps.models.base import CSRRows, DenseRows, Rows
from dps.models.custom import CustomModel
from dps.models.layout import Tensor

#: Coordinates of each tensor whose derivative is compared, besides one direction of all; and step
#: sizes of the differences. One step size must agree, since others may cross a kink.
_COORDINATES, _WIDTHS = 200, (1e-5, 1e-4, 1e-6)
#: Relative differences that rounding explains.
_TOLERANCE, _ROUNDING = 1e-4, 1e-9


def check(
    model: Any,
    X: Any,
    y: Any,
    *,
    classification: bool | None = None,
    additive: bool = True,
    n_samples: int = 12,
    random_state: int = 0,
) -> None:
    """Raise unless a model does what :class:`dps.ModelClassifier` will ask of it.

    It checks shapes, names, writes, reproducibility for the same random numbers, weights, and the
    gradient by finite differences, in float64.

    Parameters
    ----------
    model : object
        With `layout`, `init`, `loss_gradient` and `raw`.
    X : ndarray or sparse matrix of shape (n, n_features)
        For a model that takes columns, a mapping of names to vectors, such as a dataframe: numbers
        as floats, codes as integers. Or arrays of more dimensions, or a dict or tuple of arrays.
    y : array-like of shape (n,) or (n, n_outputs)
        Labels, or numbers.
    classification : bool, optional
        True if `y` holds labels. None decides by its dtype: floats are numbers.
    additive : bool, default=True
        True if the loss of a batch must be the sum of the losses of its rows. Set it to False if
        rows of a batch affect each other, as with batch normalization.
    n_samples : int, default=12
        Number of rows to use.
    random_state : int, default=0

    Raises
    ------
    ValueError
        The model breaks the contract. The message lists all findings by tensor and coordinate.

    Examples
    --------
    >>> class Line:
    ...     layout = {"slope": (1,)}
    ...     def init(self, rng):
    ...         return {"slope": 1.0}
    ...     def raw(self, params, batch):
    ...         return batch.X[:, 0] * params["slope"]
    ...     def loss_gradient(self, params, batch, out):
    ...         residual = self.raw(params, batch) - batch.y
    ...         out["slope"] += (residual * batch.X[:, 0]).sum()
    ...         return (residual**2).sum() / 2
    >>> check(Line(), np.ones((3, 1)), np.zeros(3))
    Traceback (most recent call last):
    ...
    ValueError: Line does not keep the contract of a model:
    - the loss ignores `batch.weight`: ...
    """
    problems = _Trial(model, X, y, classification, additive, n_samples, random_state).problems()
    if problems:
        raise ValueError(
            f"{type(model).__name__} does not keep the contract of a model:"
            + "".join(f"\n- {problem}" for problem in problems)
        )


@dataclass(frozen=True)
class _Named:
    """Named columns of a matrix, and whether they are codes."""

    codes: dict[str, bool]

    def __call__(self, X: Any) -> dict[str, Any]:
        return {
            name: X[:, at].astype(np.intp) if coded else X[:, at]
            for at, (name, coded) in enumerate(self.codes.items())
        }


class _Trial:
    """A model, and rows to try it on."""

    def __init__(
        self,
        model: Any,
        X: Any,
        y: Any,
        classification: bool | None,
        additive: bool,
        rows: int,
        seed: int,
    ) -> None:
        if isinstance(model, type):
            raise TypeError(f"check tries a model: give an instance of {model.__name__}")
        targets = np.asarray(y)
        if classification is None:
            classification = targets.dtype.kind != "f"
        columns: Any = None
        if getattr(model, "takes", "dense") == "columns":
            columns = _Named({name: np.asarray(X[name]).dtype.kind != "f" for name in X})
            X = np.stack([np.asarray(X[name], np.float64) for name in X], axis=1)
        elif (columns := Arrays.of(X)) is not None:
            parts = [X[name] for name in columns.names] if columns.names else X
            parts = parts if isinstance(parts, list | tuple) else [X]
            X = np.hstack([part.reshape(len(part), -1).astype(np.float64) for part in parts])
        sparse = scipy.sparse.issparse(X)
        matrix: Any = scipy.sparse.csr_array(X) if sparse else np.asarray(X)
        if matrix.ndim != 2 or matrix.shape[0] != len(targets) or not len(targets):
            raise ValueError(
                f"X must have two dimensions, and y as many rows: got {matrix.shape} and "
                f"{targets.shape}"
            )
        self._rng = np.random.default_rng(seed)
        outputs = targets.shape[1] if targets.ndim == 2 else 1
        if classification:
            classes, codes = np.unique(targets, return_inverse=True)
            outputs, targets = len(classes), codes.astype(np.float64)
        picks = self._rng.permutation(len(targets))[:rows]
        self._X = matrix[picks].astype(np.float64)
        self._y = np.ascontiguousarray(targets[picks], np.float64)
        self._model = CustomModel(model, matrix.shape[1], outputs, classification, columns=columns)
        self._additive, self._seed = additive, seed
        self._allowed = {outputs} | ({1} if classification and outputs == 2 else set())

    def problems(self) -> list[str]:
        """All problems, in order."""
        model, found = self._model, []
        start = model.initial(np.random.default_rng(self._seed))
        again = model.initial(np.random.default_rng(self._seed))
        if not np.array_equal(start, again):
            found.append("init returns other values for the same random numbers: use its `rng`")
        self._params = start.copy()
        for tensor in model.layout.tensors:  # a point other than zero
            if tensor.trained:
                values = model.layout.views(self._params)[tensor.name]
                values += 0.1 * self._rng.standard_normal(tensor.shape)
        for step in (self._of_raw, self._of_sums, self._of_weights, self._of_differences):
            found += self._attempt(step)
            if found:
                break  # later checks would repeat it
        return found

    def _attempt(self, step: Callable[[], list[str]]) -> list[str]:
        before = self._dense().copy()
        self._params.flags.writeable = False
        try:
            found = step()
        except ValueError as error:
            if "read-only" in str(error):
                return ["it writes into `params` or `batch`, which are not its own"]
            raise
        if not np.array_equal(before, self._dense()):
            found.append("it writes into `batch.X`, which is not its own")
        return found

    def _dense(self) -> Any:
        return self._X.data if scipy.sparse.issparse(self._X) else self._X

    def _rows(self, picks: Any = None) -> Rows:
        X = self._X if picks is None else self._X[picks]
        if scipy.sparse.issparse(X):
            return CSRRows(X.data, X.indices, X.indptr, X.shape[1])
        return DenseRows(X)

    def _gradient(
        self, weight: Any = None, picks: Any = None, params: Any = None, out: Any = None
    ) -> tuple[float, Any]:
        """Return the loss and the gradient for some rows."""
        model = self._model
        out = np.zeros(model.layout.size) if out is None else out
        y = self._y if picks is None else self._y[picks]
        at = self._params if params is None else params
        rng = np.random.default_rng(self._seed) if model.draws else None
        loss = model.loss_gradient(at, model.take(self._rows(picks)), y, weight, out, rng)
        for name, change in model.layout.views(out).items():
            if name in model.untrained:  # buffers may change in any way
                change[...] = 0
        return loss, out

    def _of_raw(self) -> list[str]:
        model, found = self._model, []
        raw = model.raw(self._params, self._rows())
        if raw.shape[1] not in self._allowed:
            wanted = " or ".join(map(str, sorted(self._allowed)))
            found.append(f"raw returns {raw.shape[1]} outputs a row, and y asks for {wanted}")
        if not np.array_equal(raw, model.raw(self._params, self._rows())):
            found.append("raw returns other values when it is asked again")
        few = model.raw(self._params, self._rows(np.arange(1)))
        if not np.allclose(few, raw[:1], rtol=1e-6, atol=_ROUNDING):
            found.append("raw of the first row depends on what other rows are in the batch")
        none = model.raw(self._params, self._rows(np.arange(0)))
        if none.shape[1] != raw.shape[1]:
            found.append("raw of a batch without rows has another number of outputs")
        return found

    def _of_sums(self) -> list[str]:
        loss, gradient = self._gradient()
        if not (np.isfinite(loss) and np.isfinite(gradient).all()):
            return [f"the loss is {loss} and the gradient is finite in not all of its elements"]
        second = self._gradient()
        found = []
        if second[0] != loss or not np.array_equal(second[1], gradient):
            found.append("loss_gradient returns other values for the same random numbers")
        given = self._rng.standard_normal(len(gradient))
        trained = self._trained()
        added = self._gradient(out=given.copy())[1] - given
        if not np.allclose(added[trained], gradient[trained], rtol=1e-6, atol=1e-6):
            where = self._worst(added, gradient)
            found.append(
                f"loss_gradient must add to `out`, and not set it: {where} of what was added"
            )
        if self._additive and not self._model.draws:
            half = len(self._y) // 2
            parts = [self._gradient(picks=p) for p in np.split(np.arange(len(self._y)), [half])]
            sums = parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
            if not np.isclose(sums[0], loss, rtol=1e-6):
                found.append(
                    f"the loss must be a sum over rows, not a mean: two halves have {sums[0]:g} "
                    f"together, all rows {loss:g}. Where rows know of each other, additive=False"
                )
            elif not np.allclose(sums[1], gradient, rtol=1e-6, atol=1e-8):
                found.append(
                    "the gradient must be a sum over rows, not a mean: "
                    f"{self._worst(gradient, sums[1])} of all rows, where two halves are expected"
                )
        return found

    def _of_weights(self) -> list[str]:
        u, v = self._rng.uniform(0.5, 2.0, (2, len(self._y)))
        (loss, gradient), plain = self._gradient(weight=u), self._gradient()
        found = []
        for name, changed in (("loss", loss != plain[0]), ("gradient", (gradient != plain[1]))):
            if not np.any(changed):
                found.append(
                    f"the {name} ignores `batch.weight`: each row's part is to be multiplied by "
                    "it, as by batch.weighted(values)"
                )
        if found:
            return found
        ones = self._gradient(weight=np.ones(len(self._y)))
        if not np.isclose(ones[0], plain[0]) or not np.allclose(ones[1], plain[1]):
            found.append("weights of one give another result than none")
        other, both = self._gradient(weight=v), self._gradient(weight=u + v)
        summed = loss + other[0], gradient + other[1]
        if not np.isclose(both[0], summed[0], rtol=1e-6):
            found.append(
                f"the loss is not linear in `batch.weight`: expected {summed[0]:g}, got {both[0]:g}"
            )
        if not np.allclose(both[1], summed[1], rtol=1e-6, atol=1e-8):
            where = self._worst(both[1], summed[1])
            found.append(f"the gradient is not linear in `batch.weight`: {where}")
        if not found and self._additive and not self._model.draws:
            twice = self._gradient(picks=np.r_[0, 0, 1 : len(self._y)])
            weight = np.ones(len(self._y))
            weight[0] = 2
            heavy = self._gradient(weight=weight)
            if not np.isclose(twice[0], heavy[0], rtol=1e-6):
                found.append(
                    f"a row of weight 2 is not the row twice: expected a loss of {twice[0]:g}, got "
                    f"{heavy[0]:g}"
                )
        return found

    def _of_differences(self) -> list[str]:
        model, found = self._model, []
        weight = self._rng.uniform(0.5, 2.0, len(self._y))
        _, gradient = self._gradient(weight=weight)
        for tensor in model.layout.tensors:
            if not tensor.trained:
                continue
            count = min(tensor.size, _COORDINATES)
            some = np.sort(self._rng.choice(tensor.size, count, replace=False))
            directions = [(f" at [{_place(at, tensor)}]", at) for at in some]
            directions.append((" along a random direction", self._rng.standard_normal(tensor.size)))
            for where, direction in directions:
                along = np.zeros(model.layout.size)
                inside = model.layout.views(along)[tensor.name].reshape(-1)
                if np.ndim(direction):
                    inside[:] = direction / np.sqrt(tensor.size)
                else:
                    inside[direction] = 1.0
                slope, got = self._slope(weight, along, gradient)
                if abs(slope - got) > _TOLERANCE * (1 + abs(got)):
                    found.append(
                        f"the gradient of {tensor.name!r}{where}: expected {slope:g} by finite "
                        f"differences of the loss, got {got:g}"
                    )
                    break
        if hasattr(model.model, "loss") and not model.draws:
            alone = model.evaluate(self._params, self._rows(), self._y, weight)
            beside = self._gradient(weight=weight)[0]
            if not np.isclose(alone, beside, rtol=1e-6):
                found.append(f"`loss` returns {alone:g}, and `loss_gradient` {beside:g}")
        return found

    def _slope(self, weight: Any, along: Any, gradient: Any) -> tuple[float, float]:
        """Return the derivative along a direction, from differences and from the gradient."""
        got, slopes = float(gradient @ along), []
        for width in _WIDTHS:
            ends = [
                self._gradient(weight=weight, params=self._params + shift * along)[0]
                for shift in (width, -width)
            ]
            slopes.append((ends[0] - ends[1]) / (2 * width))
            if abs(slopes[-1] - got) <= _TOLERANCE * (1 + abs(got)):
                return slopes[-1], got
        return slopes[0], got

    def _trained(self) -> Any:
        """Return a mask of the trained elements."""
        trained = np.ones(self._model.layout.size, bool)
        for name, values in self._model.layout.views(trained).items():
            values[...] = name not in self._model.untrained
        return trained

    def _worst(self, got: Any, expected: Any) -> str:
        """Describe the largest difference between two gradients."""
        at = int(np.argmax(np.abs(got - expected) * self._trained()))
        for tensor in self._model.layout.tensors:
            first = self._model.layout.offsets[tensor.name]
            if first <= at < first + tensor.size:
                place = _place(at - first, tensor)
                return f"{tensor.name!r} at [{place}] is {got[at]:g}, not {expected[at]:g},"
        raise AssertionError


def _place(at: Any, tensor: Tensor) -> str:
    """Describe the indices of an element."""
    return ", ".join(str(int(index)) for index in np.unravel_index(at, tensor.shape))
