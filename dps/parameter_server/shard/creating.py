"""Parts of tensors in creation, which callers cannot use yet.

Protocol. Each call of `ParameterServer.create` has a token.
    prepare  each shard, the first one first, makes its parts
    fill     the creator sends their initial values
    commit   each shard, the first one first, holds them (`TensorShardState.extend`). The first
             shard decides which call wins if several create the same name
Only the creator writes to prepared parts, by calls that carry its token. No other caller finds them
before the first shard has committed, and by then all parts are filled. A caller that finds new
tensors on the first shard makes the other shards commit before it asks them.

A creator that dies before the first commit leaves prepared parts. A later creation gives them up if
they have not been used for the server's `timeout`: on the first shard first, so that nothing is
given up that has been committed there. A creator that dies after the first commit leaves a whole
tensor, which the next caller commits everywhere. A shard that dies loses nothing: its mirror
prepares and fills the same parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from dps.parameter_server.shard.layout import TensorSpec
from dps.server.store.store import Store


class Creation:
    """The parts of one creation at a shard."""

    def __init__(self, tensors: tuple[TensorSpec, ...], held: Sequence[tuple[TensorSpec, int]]):
        self.tensors = tensors  # their parts on all shards
        self.held = list(held)  # the tensors with a part here, and its number
        self.stores: list[Store] = []
        self.used = time.monotonic()

    def close(self) -> None:
        """Free the memory."""
        for store in self.stores:
            store.close()


class Creations:
    """All creations at a shard, by their tokens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, Creation] = {}

    def __iter__(self) -> Iterator[tuple[str, Creation]]:
        with self._lock:
            return iter(list(self._all.items()))

    def add(self, token: str, creation: Creation) -> None:
        """Add a creation."""
        with self._lock:
            self._all[token] = creation

    def get(self, token: str) -> Creation | None:
        """Return a creation by its token, which counts as use."""
        with self._lock:
            if (found := self._all.get(token)) is not None:
                found.used = time.monotonic()
            return found

    def idle(self, seconds: float) -> tuple[str, ...]:
        """Return creations that have not been used for some seconds."""
        ending = time.monotonic() - seconds
        with self._lock:
            return tuple(token for token, each in self._all.items() if each.used < ending)

    def discard(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Abandon creations; return the tokens of those that existed."""
        with self._lock:
            gone = {token: self._all.pop(token) for token in tokens if token in self._all}
        for creation in gone.values():
            creation.close()
        return tuple(gone)

    def taken(self, tensors: Sequence[TensorSpec]) -> dict[str, Store]:
        """Return the stores of committed tensors by name, and forget their creations."""
        with self._lock:
            tokens = {tensor.creation for tensor in tensors} & set(self._all)
            gone = [self._all.pop(token) for token in tokens]
        return {
            tensor.name: store
            for creation in gone
            for (tensor, _), store in zip(creation.held, creation.stores, strict=True)
        }
