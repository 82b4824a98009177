"""Steps of processes on several hosts without dps: PyTorch over gloo, and plain TCP.

    python across.py RANK RANKS ADDRESS PORT INTERFACE

Rank 0 prints a line when the others may start. Then all read the same orders from standard input,
one a line, and rank 0 prints the seconds that each took. They stay, so that contenders can take
turns. See `hosts.py`, which starts them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

RATE = 0.1


def exactly(stream: socket.socket, view: memoryview) -> None:
    """Read as many bytes as there is room for."""
    while view:
        if not (read := stream.recv_into(view)):
            raise EOFError("the process on the other host has ended")
        view = view[read:]


class Member:
    """This process, connected with rank 0; rank 0 with all others."""

    def __init__(self, rank: int, ranks: int, address: str, port: int, interface: str) -> None:
        self.rank, self._ranks = rank, ranks
        self._address, self._port, self._interface = address, port, interface
        if rank == 0:
            with socket.create_server((address, port), backlog=ranks) as server:
                server.settimeout(60)
                print("the others may start", flush=True)
                self._streams = [server.accept()[0] for _ in range(1, ranks)]
        else:
            self._streams = [socket.create_connection((address, port))]
        for stream in self._streams:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._torch: Any = None
        self._models: dict[tuple[int, ...], Callable[[int], None]] = {}

    def together(self) -> None:
        """Wait for all; rank 0 answers once all are there."""
        for order in ("receive", "send") if self.rank == 0 else ("send", "receive"):
            for stream in self._streams:
                if order == "send":
                    stream.sendall(b".")
                else:
                    exactly(stream, memoryview(bytearray(1)))

    def trips(self, times: int, size: int) -> None:
        """Messages of the first of two there and back."""
        room, stream = memoryview(bytearray(size)), self._streams[0]
        for _ in range(times):
            if self.rank == 0:
                stream.sendall(room)
            exactly(stream, room)
            if self.rank == 1:
                stream.sendall(room)

    def _start_torch(self) -> Any:
        if self._torch is None:
            os.environ["GLOO_SOCKET_IFNAME"] = self._interface
            os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # hosts have no names that can be looked up
            import torch

            torch.set_num_threads(1)
            meet = f"tcp://{self._address}:{self._port + 1}"
            torch.distributed.init_process_group(
                "gloo", init_method=meet, rank=self.rank, world_size=self._ranks
            )
            self._torch = torch
        return self._torch

    def all_reduce(self, times: int, size: int) -> None:
        """Sums of as many float32."""
        torch = self._start_torch()
        vector = torch.zeros(size)
        for _ in range(times):
            torch.distributed.all_reduce(vector)

    def ddp(self, steps: int, features: int, batch: int, *units: int) -> None:
        """Steps of layers of such units by SGD, with those settings of DDP that save copies.

        Gradients are views of the buckets, and the graph is known not to change.
        """
        torch = self._start_torch()
        if (name := (features, *units)) not in self._models:
            generator = torch.Generator().manual_seed(self.rank)
            rows = 64 * batch
            X = torch.randn(rows, features, generator=generator)
            y = (X[:, :3].sum(dim=1) > 0).float()
            layers, width = [], features
            for size in units:
                layers += [torch.nn.Linear(width, size), torch.nn.ReLU()]
                width = size
            model = torch.nn.parallel.DistributedDataParallel(
                torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)),
                gradient_as_bucket_view=True, static_graph=True,
            )  # fmt: skip
            loss = torch.nn.BCEWithLogitsLoss()
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

            def train(steps: int) -> None:
                for step in range(steps):
                    start = step * batch % rows
                    optimizer.zero_grad()
                    loss(model(X[start : start + batch])[:, 0], y[start : start + batch]).backward()
                    optimizer.step()

            self._models[name] = train
        self._models[name](steps)


def main() -> None:
    rank, ranks, address, port, interface = sys.argv[1:]
    member = Member(int(rank), int(ranks), address, int(port), interface)
    for line in sys.stdin:
        name, times, *sizes = line.split()
        order = getattr(member, name)
        order(2, *map(int, sizes))
        member.together()
        began = time.perf_counter()
        order(int(times), *map(int, sizes))
        member.together()
        if member.rank == 0:
            print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
