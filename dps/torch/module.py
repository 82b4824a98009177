"""A PyTorch module and a criterion behind the interface of models."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dps.models import Layout, Rows, Tensor
from dps.models.arrays import Arrays
from dps.models.batches import FORMS
from dps.models.columns import Padded
from dps.models.custom import check_outputs, raw_outputs
from dps.torch.bound_module import BoundModule, persistent_buffers
from dps.torch.criteria import Criterion, total_of

#: Rows that go through a module at a time without training.
_ROWS = 1024
#: Held by a module that draws random numbers from the process's generator.
_rng_lock = threading.Lock()
_threads = threading.Lock()
_inside, _before = 0, 0


def device_of(asked: str) -> torch.device:
    """Return the device of a name in this process; "auto" is a GPU if there is one."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(asked)


def layout_of(module: nn.Module) -> Layout:
    """Return a module's tensors: the trained parameters, then buffers.

    Raises TypeError, ValueError: there are no parameters, they have several dtypes or one that dps
        does not train, or they belong to a scripted module.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    name = type(module).__name__
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule) and any(True for _ in part.parameters()):
            raise TypeError(
                f"{f'{path!r} of {name}' if path else name} is a scripted or traced module, whose "
                "parameters would not be trained: train the module it was made of, and script "
                "module_ after the fit"
            )
    if any(isinstance(p, nn.parameter.UninitializedTensorMixin) for p in trained.values()):
        raise ValueError(
            f"{name} has parameters without a shape yet: call it once on a batch of rows"
        )
    dtypes = {p.dtype for p in trained.values()}
    if not trained:
        raise ValueError(f"{name} has no parameters to train")
    if len(dtypes) > 1 or dtypes - {torch.float32, torch.float64}:
        raise TypeError(
            f"all trained parameters of {name} must be float32, or all float64; there are "
            f"{sorted(map(str, dtypes))}: use module.float()"
        )
    largest = 2.0**24 if torch.float32 in dtypes else 2.0**53
    tensors = [Tensor(name, tuple(p.shape), p.ndim > 1) for name, p in trained.items()]
    for key, buffer in persistent_buffers(module).items():
        if buffer.is_complex() or (
            not buffer.is_floating_point() and buffer.numel() and buffer.abs().max() > largest
        ):
            raise ValueError(
                f"the buffer {key!r} of {name} holds what a vector of {dtypes.pop()} cannot: "
                "register it with persistent=False, if it never changes"
            )
        tensors.append(Tensor(key, tuple(buffer.shape), False, trained=False))
    return Layout(tuple(tensors))


class TorchModel:
    """A module with a criterion.

    The module does not change: a copy computes, made in the process that uses it. Copies of the
    model, one per replica, share the module. A pickled model has no weights, which come as
    `params`.

    criterion: see `criterion_of`.
    n_features, n_outputs: columns of X, and classes or columns of y.
    takes: {"dense", "sparse", "columns"}.
    columns: what the module gets in place of rows that are not vectors; several arrays are passed
        as arguments, by name if they came as a dict.
    """

    #: Metadata of its maker; not used here.
    shape: Any = None
    whole: ClassVar[bool] = True
    kernel: ClassVar[None] = None
    by_blas: ClassVar[bool] = True

    def __init__(
        self,
        module: nn.Module,
        criterion: Criterion,
        n_features: int,
        n_outputs: int,
        classification: bool,
        device: str = "cpu",
        takes: str = "dense",
        columns: Any = None,
    ) -> None:
        self.module, self.criterion = module, criterion
        self.n_features, self.n_outputs = n_features, n_outputs
        self.classification = classification
        self.device, self.takes, self.columns = device, takes, columns
        self.layout = layout_of(module)
        single = next(p for p in module.parameters() if p.requires_grad).dtype == torch.float32
        self.dtype = np.dtype("f4" if single else "f8")
        self._form = FORMS[takes]
        self._forget()

    def _forget(self) -> None:
        """Reset the state to that before any computation."""
        self._live: BoundModule | None = None
        self._device = torch.device("cpu")  # device of the live module
        self._lock = threading.Lock()
        #: True if the module draws random numbers; None until it has been tried.
        self.draws: bool | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_live", "_device", "_lock", "draws"):
            del state[name]
        state["module"] = self._weightless()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for each in self._tensors().values():
            each.data = torch.zeros(each.shape, dtype=each.dtype, device=each.device)
        self._forget()

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers of the layout."""
        known = dict(self.module.named_parameters()) | persistent_buffers(self.module)
        return {tensor.name: known[tensor.name] for tensor in self.layout.tensors}

    def _weightless(self) -> nn.Module:
        """Copy the module with one number in place of each tensor, since `params` has these."""
        memo: dict[int, Any] = {}
        for each in self._tensors().values():
            one = torch.zeros((), dtype=each.dtype, device=each.device).expand(each.shape)
            if isinstance(each, nn.Parameter):
                one = nn.Parameter(one, requires_grad=each.requires_grad)
            one.__dict__.update(each.__dict__)
            memo[id(each)] = one
        return copy.deepcopy(self.module, memo)

    def __deepcopy__(self, memo: Any) -> TorchModel:
        new = copy.copy(self)
        memo[id(self)] = new
        return new

    def initial(self, rng: Any = None) -> NDArray[np.floating]:
        """Return the weights and buffers of the module."""
        params = np.empty(self.layout.size, self.dtype)
        given = self._tensors()
        for name, values in self.layout.views(params).items():
            values[...] = given[name].detach().cpu().numpy()
        return params

    def with_weights(self, params: NDArray[np.floating]) -> nn.Module:
        """Return a copy of the module with these weights and buffers, for predictions."""
        module = copy.deepcopy(self.module).cpu()
        state = dict(module.named_parameters()) | persistent_buffers(module)
        with torch.no_grad():
            for name, values in self.layout.views(params).items():
                given = torch.from_numpy(values.copy())
                state[name].copy_(given if state[name].is_floating_point() else given.round())
        return module.eval()

    def take(self, X: Rows) -> Any:
        """Return rows of a block, see `CustomModel.take`."""
        return self._form.take(X)

    def join(self, parts: Any) -> Any:
        """Join rows of several blocks into one."""
        return self._form.join(parts)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Make PyTorch compute in the calling thread; replicas share the cores."""
        global _inside, _before
        with _threads:
            if _inside == 0:
                _before = torch.get_num_threads()
            _inside += 1
        torch.set_num_threads(1)  # each thread has a setting of its own
        try:
            yield
        finally:
            with _threads:
                _inside -= 1
                if _inside == 0:
                    torch.set_num_threads(_before)

    def loss_gradient(
        self,
        params: NDArray[np.floating],
        X: Any,
        y: NDArray[np.floating],
        weight: NDArray[np.floating] | None,
        out: NDArray[np.floating],
        rng: Any = None,
    ) -> float:
        """Add the gradient to `out` and return the sum of losses, see `Model.loss_gradient`.

        Rows come from `take` and `join`.
        """
        live = self._bind(params)
        live.gather(out)
        if not live.module.training:
            live.module.train()
        given = self._inputs(X), self._tensor(y), None if weight is None else self._tensor(weight)
        writes = live.writes
        total = (
            self._forward(live, *given) if rng is None else self._seeded_forward(live, given, rng)
        )
        if live.writes != writes:
            raise TypeError(
                f"{type(self.module).__name__} writes to its own weights in forward, as "
                "Embedding(max_norm=...) does, which replicas would not hear of: compute with a "
                "changed copy, such as torch.nn.functional.normalize(weight)"
            )
        total.backward()
        live.end(len(y))
        return float(total.detach())

    def evaluate(
        self,
        params: NDArray[np.floating],
        X: Rows,
        y: NDArray[np.floating],
        weight: NDArray[np.floating] | None,
    ) -> float:
        """Return the sum of losses of the module in evaluation mode."""
        live = self._bind(params)
        if live.module.training:
            live.module.eval()
        weights = None if weight is None else self._tensor(weight)
        with torch.no_grad():
            return float(self._forward(live, self._inputs(self.take(X)), self._tensor(y), weights))

    def raw(self, params: NDArray[np.floating], X: Rows) -> NDArray[np.floating]:
        """Return the module's outputs in evaluation mode, (rows, n_outputs)."""
        rows = self.take(X)
        with self._lock:  # several threads may predict with one model
            live = self._bind(params)
            live.module.eval()
        parts = []
        with torch.no_grad():
            for start in range(0, max(1, rows.shape[0]), _ROWS):
                output = self._output(live, self._inputs(rows[start : start + _ROWS]))
                parts.append(output.cpu().numpy())
        whose = f"the output of {type(self.module).__name__}"
        return raw_outputs(np.concatenate(parts), rows.shape[0], self.dtype, whose)

    def _bind(self, params: NDArray[np.floating]) -> BoundModule:
        if self._live is None:
            device = self._device = device_of(self.device)
            module = copy.deepcopy(self.module)
            self._live = BoundModule(module, self.layout, device, copied=device.type != "cpu")
        self._live.begin(params)
        return self._live

    def _inputs(self, X: Any) -> Any:
        given = X if self.columns is None else self.columns(X)
        if isinstance(given, dict):
            return {name: self._input(each) for name, each in given.items()}
        return tuple(map(self._input, given if isinstance(given, tuple) else (given,)))

    def _input(self, X: Any) -> Any:
        if isinstance(X, Padded):
            return Padded(*map(self._tensor, (X.values, X.lengths, X.mask)))
        if isinstance(X, np.ndarray):
            return self._tensor(X)
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        at = torch.from_numpy(np.stack([rows, X.indices.astype(np.int64)]))
        return torch.sparse_coo_tensor(
            at, self._tensor(X.data), X.shape, is_coalesced=True, check_invariants=False
        ).to(self._device)

    def _tensor(self, values: Any) -> torch.Tensor:
        """Put values on the device; copy what must not be written to."""
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        return tensor if self._device.type == "cpu" else tensor.to(self._device)

    def _output(self, live: BoundModule, inputs: Any) -> torch.Tensor:
        try:
            if isinstance(inputs, tuple):
                output = live.module(*inputs)
            elif isinstance(self.columns, Arrays):
                output = live.module(**inputs)
            else:
                output = live.module(inputs)
        except RuntimeError as error:
            if "Long, Int" in str(error):  # the types that PyTorch requires for indices
                error.add_note(
                    "rows of one array are numbers of the module's dtype: give {'x': array}, "
                    "whose integers stay integers, or call x.long() in forward"
                )
            raise
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                f"{type(self.module).__name__} must return a tensor, with a row of outputs for "
                f"each row; it returned a {type(output).__name__}"
            )
        return output

    def _forward(
        self, live: BoundModule, inputs: Any, y: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        output = self._output(live, inputs)
        if self.classification:
            found = output.shape[1] if output.ndim > 1 else 1
            check_outputs(found, self.n_outputs, True, f"the module {type(self.module).__name__}")
        return total_of(self.criterion, output, y, weight, self.classification)

    def _seeded_forward(self, live: BoundModule, given: tuple[Any, ...], rng: Any) -> torch.Tensor:
        """Run the forward pass with random numbers that depend only on `rng`.

        PyTorch's generator belongs to the process. A module that has drawn nothing in its first
        step is not seeded again.
        """
        generator = torch.default_generator
        if self._device.type == "cuda":
            generator = torch.cuda.default_generators[self._device.index or 0]
        with _rng_lock:
            before = generator.get_state()
            try:
                generator.manual_seed(int(rng.integers(2**63)))
                seeded = generator.get_state() if self.draws is None else None
                total = self._forward(live, *given)
                if seeded is not None:
                    self.draws = not torch.equal(seeded, generator.get_state())
            finally:
                generator.set_state(before)
        return total
