"""A rank's connections to the shards: the first decides whose the rank is, then all at once."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dps.errors import FencedError
from dps.transport import connect

N_SHARDS = 5


class Connecting:
    """A link that has the rank once the others, but for the first shard's, are asked as well."""

    def __init__(self, window: Any, rank: int, *_: Any) -> None:
        self._shards, self._number = window
        self._shards.links.append(self)
        self.claimed = self.closed = False

    def claim(self) -> None:
        assert (self._number == 0) == (not self._shards.links[0].claimed)
        if self._number:
            self._shards.all_asked.wait(10)
        if self._number == self._shards.taken:
            raise FencedError("another attempt has it", rank=0)
        self.claimed = True

    def close(self) -> None:
        self.closed = True


def shards(monkeypatch: pytest.MonkeyPatch, taken: int | None = None) -> Any:
    made = SimpleNamespace(links=[], taken=taken, all_asked=threading.Barrier(N_SHARDS - 1))
    module = sys.modules["dps.transport.connect"]
    monkeypatch.setattr(module, "MappedLink", Connecting)
    monkeypatch.setattr(module, "map_window", lambda card: (made, card))
    made.session = SimpleNamespace(
        shards=[SimpleNamespace(card=number, endpoint=None) for number in range(N_SHARDS)],
        server=SimpleNamespace(timeout=1.0, silence=1.0),
    )
    return made


def test_a_rank_connects_to_its_shards_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = shards(monkeypatch)
    links = connect(made.session, 0, 1, access="auto")
    assert links == made.links
    assert all(link.claimed for link in made.links)


@pytest.mark.parametrize("taken", [0, 3])
def test_all_connections_are_closed_where_a_shard_refuses(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shards(monkeypatch, taken)
    with pytest.raises(FencedError):
        connect(made.session, 0, 1, access="auto")
    assert len(made.links) == N_SHARDS
    assert all(link.closed for link in made.links)
    assert taken or not any(link.claimed for link in made.links)
