"""A module whose parameters and gradients are in flat vectors.

On a CPU they are views, so nothing is copied: a step reads the window or the replica's own vector,
and `backward` adds to the sum that is pushed. On a GPU each vector is copied there and back in one
piece.

Buffers change while a module computes, and the vector that it reads may be shared, so they are
copied in each step. Their changes are handed over like gradients (see `Tensor`), so buffers are
summed, applied, snapshotted and restored like parameters: the buffers in a batch include the
changes of all replicas so far.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from dps.models import Layout


def persistent_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of a module's state, each once."""
    kept = module.state_dict()
    return {name: buffer for name, buffer in module.named_buffers() if name in kept}


@dataclass
class _Buffer:
    """A buffer of a module, and its place among all buffers."""

    owner: nn.Module
    key: str
    own: torch.Tensor
    place: slice
    counted: bool  # whether it is an integer counter, which is not in the vector

    @property
    def current(self) -> Any:
        """Return the module's current value."""
        return self.owner._buffers[self.key]


class BoundModule:
    """A module bound to flat vectors.

    module: changed, and owned from now on.
    layout: trained parameters first, then buffers.
    copied: whether the vectors are copied to the device and back.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, device: torch.device, copied: bool
    ) -> None:
        self.module = module.to(device)
        self._copied = copied
        named, buffers = dict(module.named_parameters()), persistent_buffers(module)
        places = {
            tensor.name: slice(first, first + tensor.size)
            for tensor, first in zip(layout.tensors, layout.offsets.values(), strict=True)
        }
        self._trained = [
            (named[tensor.name], places[tensor.name]) for tensor in layout.tensors if tensor.trained
        ]
        self._first = sum(tensor.size for tensor in layout.tensors if tensor.trained)
        dtype = self._trained[0][0].dtype
        self._held = torch.empty(layout.size - self._first, dtype=dtype, device=device)
        self._buffers: list[_Buffer] = []
        for tensor in layout.tensors:
            if not tensor.trained:
                path, _, key = tensor.name.rpartition(".")
                place = places[tensor.name]
                inside = slice(place.start - self._first, place.stop - self._first)
                own, counted = buffers[tensor.name], buffers[tensor.name].dtype != dtype
                if not counted:
                    own = self._held[inside].view(own.shape)
                self._buffers.append(_Buffer(module.get_submodule(path), key, own, inside, counted))
        self._point: Any = None
        self._target: Any = None
        self._host = self._sum = self._flat = self._gradient = torch.empty(0)
        if copied:
            self._flat = torch.empty(layout.size, dtype=dtype, device=device)
            self._gradient = torch.empty_like(self._flat)

    def begin(self, params: NDArray[Any]) -> None:
        """Use these parameters and buffers."""
        if params is not self._point:
            self._point, self._host = params, tensor_at(params)
            if not self._copied:
                self._flat = self._host
            for parameter, place in self._trained:
                parameter.data = self._flat[place].view(parameter.shape)
        if self._copied:
            self._flat.copy_(self._host)
        if self._buffers:
            self._held.copy_(self._flat[self._first :])
            for buffer in self._buffers:
                if buffer.counted:
                    buffer.own.copy_(self._held[buffer.place].view_as(buffer.own).round())
                if buffer.current is not buffer.own:
                    buffer.owner._buffers[buffer.key] = buffer.own

    @property
    def writes(self) -> int:
        """Return the number of writes to trained parameters by PyTorch's functions."""
        return sum(parameter._version for parameter, _ in self._trained)

    def gather(self, out: NDArray[Any]) -> None:
        """Make `backward` add to this vector."""
        if out is not self._target:
            self._target, self._sum = out, tensor_at(out)
            if not self._copied:
                self._gradient = self._sum
            for parameter, place in self._trained:
                parameter.grad = self._gradient[place].view(parameter.shape)
        if self._copied:
            self._gradient.zero_()

    def end(self, rows: int) -> None:
        """Add the changes of buffers, times the rows."""
        if self._buffers:
            for buffer in self._buffers:
                if buffer.counted or buffer.current is not buffer.own:
                    self._held[buffer.place] = buffer.current.detach().reshape(-1)
            change = self._flat[self._first :] - self._held
            self._gradient[self._first :].add_(change, alpha=rows)
        if self._copied:
            self._sum.add_(self._gradient.to(self._sum.device))


def tensor_at(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor in an array's memory, which is written only if the array is writeable.

    Not `torch.from_numpy`, which warns about read-only arrays. The tensor keeps the array alive.
    """
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    dtype = torch.float32 if array.itemsize == 4 else torch.float64
    return torch.frombuffer(memory, dtype=dtype)
