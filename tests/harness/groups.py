"""Ranks of a group in one process: windows, and channels that map them or reach them over TCP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from dps._runtime.shared.activity import Activity
from dps._runtime.wire.wire import SocketWire
from dps.errors import ServerLostError
from dps.models import TableSpec
from dps.modes import MODES as ALL_MODES, Mode, Sync
from dps.optimizers import SGD, Constant, Optimizer
from dps.optimizers.update import Rates, Update
from dps.server.group.operations import claim
from dps.server.group.window import Window, WindowSpec
from dps.server.memory.arrays import MemoryCard
from dps.server.placement import Placement
from dps.server.shard import WindowCard
from dps.server.store.store import Store, StoreSpec
from dps.server.store.tables import arena_of
from dps.training.replica.channel import Channel, ChannelSpec
from dps.transport.far import FarLink
from dps.transport.host import HostLink
from dps.transport.mapped import MappedLink
from dps.transport.serving import serve_rank

FENCE = 1


class LoopbackLink(FarLink):
    """A link over TCP to a thread of this process, which serves the rank as a shard's would."""

    connect = staticmethod(socket.create_connection)

    def __init__(self, window: Window, mode: Mode, rank: int, timeout: float) -> None:
        nowhere = MemoryCard(b"", None)
        card = WindowCard(window.spec, nowhere, nowhere, None, "elsewhere", None)
        super().__init__(card, None, rank, FENCE, timeout)  # type: ignore[arg-type]
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = self.connect(listening.getsockname())
            theirs, _ = listening.accept()
        wire = SocketWire(theirs, b"", lambda: None, ConnectionError, 0.2)

        def serve() -> None:
            with closing(wire):
                serve_rank(window, mode.channel, rank, timeout, wire)

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        self._wire = SocketWire(ours, b"", self._tick, ServerLostError, 0.2)

    def claim(self) -> None:
        self._channel = self._made(0, 0, Activity([self.counts]))
        self.call(claim, FENCE)

    def _tick(self) -> None:
        """A thread of this process lives."""

    def abort(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        super().close()
        self._thread.join()


#: The modes that are for models without a table, too, by name.
MODES = {name: mode for name, mode in ALL_MODES.items() if not mode.needs_table}


class Group:
    """Ranks and their windows; to be entered.

    Parameters
    ----------
    mode : Mode
    n_ranks, size, n_shards : int
    far : collection of (int, int)
        Ranks and shards between which there is TCP.
    keyed : Rates or None
        Where steps go by keys.
    hosts : sequence of tuple of int
        The ranks of each host, where they sum there first.
    table : TableSpec or None
        What the first keys are.
    epoch_steps : int
        Steps of an epoch of the rank that has most.
    update : Update or None
        Of the one shard, instead of that of the optimizer.
    """

    def __init__(
        self,
        mode: Mode | None = None,
        n_ranks: int = 2,
        size: int = 8,
        *,
        n_shards: int = 1,
        far: Collection[tuple[int, int]] = (),
        dtype: str = "float64",
        optimizer: Optimizer | None = None,
        rate: float = 0.5,
        keyed: Rates | None = None,
        timeout: float = 30.0,
        alive: Callable[[], None] | None = None,
        hosts: Sequence[tuple[int, ...]] = (),
        table: TableSpec | None = None,
        epoch_steps: int = 0,
        update: Update | None = None,
    ) -> None:
        mode = mode or Sync()
        optimizer = optimizer or SGD()
        rows = optimizer.state_rows
        key_width = 0 if keyed is None else keyed.width
        self.placement = Placement.of(size, n_shards, key_width or 1)
        self._stack = ExitStack()
        self.windows: list[Window] = []
        for shard in range(len(self.placement)):
            part = self.placement.size(shard)
            holds = mode.shards_hold_parameters
            arena = None
            if table is not None:
                arena = arena_of(table, self.placement, shard, n_ranks, 7, optimizer)
            held = StoreSpec(
                "f00d", shard, part, dtype, rows, holds, key_width=key_width, arena=arena
            )
            applied = update or Update(optimizer, 0.0, 0.0, ((0, part, False),), keyed)
            store = Store.create(
                held, np.zeros((1 + rows, held.behind)), update=applied if holds else None
            )
            store.begin()
            members = tuple(ranks[0] for ranks in hosts)
            ring = -(-size // n_shards) if mode.uses_ring and n_shards > 1 else 0
            spec = WindowSpec(
                "f00d", n_ranks, held, 16, members, ring=ring, quorum=mode._quorum(n_ranks),
                gathers=mode.gathers,
                rounds=mode.narrow and not (holds or mode.uses_ring),
            )  # fmt: skip
            self.windows.append(Window.create(spec, store))
        update = update or Update(optimizer, 0.0, 0.0, ((0, size, False),), keyed)
        near: dict[int, HostLink] = {}
        for ranks in hosts:
            if len(ranks) > 1:
                summed = StoreSpec("f00d", 0, size, dtype, key_width=key_width)
                store = Store.create(summed, np.zeros((1, size)))
                window = Window.create(WindowSpec("f00d", len(ranks), store.spec), store)
                near |= {r: HostLink(window, ranks.index(r), ranks, timeout) for r in ranks}
                self._stack.callback(window.stop, 2)
        self.channels: list[Channel] = []
        for rank in range(n_ranks):
            links: list[Any] = []
            for shard, window in enumerate(self.windows):
                if (rank, shard) in far:
                    links.append(LoopbackLink(window, mode, rank, timeout))
                else:
                    links.append(MappedLink(window, rank, FENCE, timeout, alive))
                self._stack.callback(links[-1].close)
                links[-1].claim()
            active = self.windows[0].spec.active
            spec = ChannelSpec(
                rank, n_ranks, self.placement, size, dtype, Constant(rate), update,
                place=active.index(rank) if rank in active else -1, epoch_steps=epoch_steps,
            )  # fmt: skip
            self.channels.append(Channel(mode, spec, links, near.get(rank)))

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        for window in self.windows:
            window.stop(2)
        self._stack.close()


def at_once(functions: list[Callable[[], Any]]) -> list[Any]:
    """Run functions in threads of their own; return their results or errors."""
    ends: list[Any] = [None] * len(functions)

    def run(number: int) -> None:
        try:
            ends[number] = functions[number]()
        except Exception as error:
            ends[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends
