"""A user's own model behind the interface of models.

It has a simpler interface: tensors by name, and batches as arrays.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import numpy as np

from dps.models.base import Rows
from dps.models.batches import FORMS, Batch
from dps.models.layout import Layout, Tensor


class Gradients(dict[str, Any]):
    """Tensors by name that may only be added to, in place."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self or value is not self[name]:
            raise TypeError(
                f"out[{name!r}] was assigned to; add to it in place: out[{name!r}] += ..., for one "
                f"of {sorted(self)}"
            )


def layout_of(model: Any) -> Layout:
    """Return the layout of a user's model.

    model: its `layout` is a Layout, or a mapping of names to shapes or tensors; shapes with two
        dimensions or more are penalised.
    Raises TypeError: it is something else.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> layout_of(SimpleNamespace(layout={"w": (2, 1), "b": (1,)})).segments(0, 3)
    [(0, 2, 1), (2, 3, 0)]
    """
    given = model.layout
    if isinstance(given, Layout):
        return given
    if not isinstance(given, Mapping) or not given:
        _refuse_layout(model, f"is {given!r}")
    tensors = []
    for name, shape in given.items():
        if isinstance(shape, Tensor):
            if shape.name != name:
                _refuse_layout(model, f"has the tensor {shape.name!r} by the name {name!r}")
            tensors.append(shape)
            continue
        sizes = (shape,) if isinstance(shape, int | np.integer) else shape
        if not isinstance(sizes, tuple | list) or not all(
            isinstance(size, int | np.integer) and size > 0 for size in sizes
        ):
            _refuse_layout(model, f"has {shape!r} for {name!r}")
        tensors.append(Tensor(str(name), tuple(map(int, sizes)), penalised=len(sizes) > 1))
    return Layout(tuple(tensors))


def _refuse_layout(model: Any, what: str) -> NoReturn:
    raise TypeError(
        f"the layout of {type(model).__name__} {what}: it must be a dps.models.Layout, or a dict "
        "of names to shapes, such as {'weights': (10, 1), 'bias': (1,)}"
    )


class CustomModel:
    """A user's model with the methods that replicas call; see docs/howto/own_models.md.

    n_features: columns of X in training.
    n_outputs: classes, or columns of y.
    classification: whether targets are codes of classes.
    dtype: float32 or float64.
    columns: what the model gets in place of rows that are not vectors.

    Examples
    --------
    >>> from dps.models.base import DenseRows
    >>> class Mean:
    ...     layout = {"mean": (1,)}
    ...     def init(self, rng):
    ...         return {"mean": 0.0}
    ...     def raw(self, params, batch):
    ...         return np.repeat(params["mean"], batch.rows)
    ...     def loss_gradient(self, params, batch, out):
    ...         residual = batch.weighted(params["mean"] - batch.y)
    ...         out["mean"] += residual.sum()
    ...         return (residual * (params["mean"] - batch.y)).sum() / 2
    >>> model, grad = CustomModel(Mean(), 1, 1, False), np.zeros(1)
    >>> X, y = np.zeros((2, 1)), np.array([1.0, 3.0])
    >>> model.loss_gradient(model.initial(np.random.default_rng(0)), X, y, None, grad), grad
    (5.0, array([-4.]))
    """

    #: Metadata of its maker; not used here.
    shape: Any = None
    whole: ClassVar[bool] = True
    kernel: ClassVar[None] = None

    def __init__(
        self,
        model: Any,
        n_features: int,
        n_outputs: int,
        classification: bool,
        dtype: Any = np.float64,
        columns: Any = None,
    ) -> None:
        self.model = model
        self.n_features = n_features
        self.n_outputs = n_outputs
        self.classification = classification
        self.dtype = np.dtype(dtype)
        self.columns = columns
        self.layout = layout_of(model)
        self.draws = bool(getattr(model, "draws", False))
        self.by_blas = bool(getattr(model, "by_blas", True))
        takes = getattr(model, "takes", "dense")
        if takes not in FORMS:
            raise ValueError(
                f"the attribute 'takes' of {type(model).__name__} must be one of "
                f"{sorted(FORMS)}. Got {takes!r} instead."
            )
        self._form = FORMS[takes]
        self.untrained = [tensor.name for tensor in self.layout.tensors if not tensor.trained]
        self._seen: tuple[Any, ...] = (None, None, None, None)
        self._checked = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": (None, None, None, None)}

    def initial(self, rng: Any) -> Any:
        """Return the parameters training starts from, see `Model.initial`."""
        given, name = self.model.init(rng), type(self.model).__name__
        wanted = [tensor.name for tensor in self.layout.tensors]
        if not isinstance(given, Mapping) or set(given) != set(wanted):
            found = sorted(given) if isinstance(given, Mapping) else repr(given)
            raise ValueError(
                f"init of {name} must return a dict with a value for each tensor of its layout, "
                f"{wanted}; it returned {found}"
            )
        params = np.empty(self.layout.size, self.dtype)
        for each, values in self.layout.views(params).items():
            start = np.asarray(given[each])
            if start.ndim and start.shape != values.shape:
                raise ValueError(
                    f"init of {name} returned {each!r} with the shape {start.shape}, and the "
                    f"layout says {values.shape}"
                )
            values[...] = start
        if not np.isfinite(params).all():
            raise ValueError(f"init of {name} returned values that are not finite")
        return params

    def take(self, X: Rows) -> Any:
        """Return rows out of a block, in the model's form."""
        return self._form.take(X)

    def join(self, parts: Any) -> Any:
        """Join rows of several blocks into one."""
        return self._form.join(parts)

    def loss_gradient(
        self,
        params: Any,
        X: Any,
        y: Any,
        weight: Any,
        out: Any,
        rng: Any = None,
    ) -> float:
        """Add the gradient to ``out`` and return the sum of losses, see `Model.loss_gradient`.

        Rows come from `take` and `join`.
        """
        at, grad = self._named(params, out)
        batch = self._batch(X, y, weight)
        if not self._checked:
            self._check_outputs(at, batch)
        more: dict[str, Any] = {"rng": rng} if self.draws else {}
        if not self.untrained:
            return self._number(self.model.loss_gradient(at, batch, grad, **more))
        buffers = {name: at[name].copy() for name in self.untrained}
        loss = self.model.loss_gradient(at, batch, grad, buffers=buffers, **more)
        changes = self.layout.views(out)
        for name in self.untrained:
            changes[name] += batch.rows * (at[name] - buffers[name])
        return self._number(loss)

    def _check_outputs(self, at: Any, batch: Batch) -> None:
        """Raise if the number of raw outputs does not match the targets."""
        whose = f"raw of {type(self.model).__name__}"
        raw = raw_outputs(self.model.raw(at, batch), batch.rows, self.dtype, whose)
        check_outputs(raw.shape[1], self.n_outputs, self.classification, whose)
        self._checked = True

    def evaluate(self, params: Any, X: Rows, y: Any, weight: Any) -> float:
        """Return the sum of losses by the model's `loss`, else by `loss_gradient`."""
        rows = self.take(X)
        if hasattr(self.model, "loss"):
            at = self.layout.views(params)
            return self._number(self.model.loss(at, self._batch(rows, y, weight)))
        rng = np.random.default_rng(0) if self.draws else None
        return self.loss_gradient(params, rows, y, weight, np.zeros_like(params), rng)

    def raw(self, params: Any, X: Rows) -> Any:
        """Return the raw outputs, see `Model.raw`."""
        batch = self._batch(self.take(X), None, None)
        raw = self.model.raw(self.layout.views(params), batch)
        return raw_outputs(raw, batch.rows, self.dtype, f"raw of {type(self.model).__name__}")

    def _batch(self, X: Any, y: Any, weight: Any) -> Batch:
        rows = X.shape[0]
        if self.columns is not None:
            X = self.columns(X)
        if y is not None and self.classification:
            y = y.astype(np.intp)
        return Batch(X, y, weight, rows)

    def _named(self, params: Any, out: Any) -> tuple[Any, Any]:
        """Return tensors by name; loops pass the same arrays repeatedly."""
        if self._seen[0] is not params or self._seen[1] is not out:
            grad = self.layout.views(out)
            for name in self.untrained:
                del grad[name]
            self._seen = (params, out, self.layout.views(params), Gradients(grad))
        return self._seen[2], self._seen[3]

    def _number(self, loss: Any) -> float:
        try:
            return float(loss)
        except (TypeError, ValueError):
            raise TypeError(
                f"{type(self.model).__name__} must return the sum of the losses of the rows, a "
                f"number; it returned {loss!r}"
            ) from None


def check_outputs(found: int, wanted: int, classification: bool, whose: str) -> None:
    """Raise unless the number of outputs per row suits the targets."""
    if found == wanted or (classification and wanted == 2 and found == 1):
        return
    kind = "classes" if classification else "targets"
    raise ValueError(f"{whose} makes {found} outputs a row, and there are {wanted} {kind}")


def raw_outputs(raw: Any, rows: int, dtype: Any, whose: str) -> Any:
    """Return raw outputs as (rows, n_outputs), also from a vector.

    Raises ValueError: the number of rows is wrong.
    """
    raw = np.asarray(raw)
    if raw.ndim not in (1, 2) or len(raw) != rows:
        raise ValueError(
            f"{whose} must be of the shape ({rows},) or ({rows}, n_outputs) for {rows} rows; it is "
            f"of {raw.shape}"
        )
    return np.ascontiguousarray(raw if raw.ndim == 2 else raw[:, None], dtype)
