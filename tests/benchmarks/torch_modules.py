"""Steps a second of a PyTorch module: dps.torch against PyTorch's own DDP over gloo.

    python tests/benchmarks/torch_modules.py [--epochs N] [--repeat K] [--quick]

A network 100-64-1 under the mean squared error by Adam, float32, two processes with one core each,
256 rows each and step, from the same start. dps trains on a LocalCluster; its steps by the seconds
of an epoch. DDP's processes run already and have made their first steps when its clock starts.
The loss is that of other rows after as many epochs; in async an update is of one replica's rows,
and there are twice as many. Interleaved; medians.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from measure import bars, cluster, installed, options, table

FEATURES, HIDDEN, BATCH, RANKS, RATE = 100, 64, 256, 2, 1e-3
TEST_ROWS = 20_000


def make(rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Numbers, and a target that a network can learn."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, FEATURES), dtype=np.float32)
    return X, np.sin(X[:, 0]) + X[:, 1]


def network() -> Any:
    """The network, always with the same weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def loss_of(module: Any) -> float:
    """The mean squared error over rows that no one was trained on."""
    import torch

    X, y = make(TEST_ROWS, seed=1)
    with torch.no_grad():
        return float(((module(torch.from_numpy(X))[:, 0].numpy() - y) ** 2).mean())


def ddp_rank(rank: int, folder: str, rows: int, epochs: int) -> None:
    """Train as one of the processes of DDP; the first one writes seconds a step, and the loss."""
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    X, y = make(rows)
    mine = slice(rank * rows // RANKS, (rank + 1) * rows // RANKS)
    values, targets = torch.from_numpy(X[mine]), torch.from_numpy(y[mine])
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    generator, spent = torch.Generator().manual_seed(rank), []
    for _ in range(epochs):
        order = torch.randperm(len(values), generator=generator)
        distributed.barrier()
        began = time.perf_counter()
        steps = order.split(BATCH)
        for some in steps:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(values[some])[:, 0], targets[some]).backward()
            optimizer.step()
        spent.append((time.perf_counter() - began) / len(steps))
    if rank == 0:
        found = f"{statistics.median(spent)} {loss_of(model.module)}"
        Path(folder, "found").write_text(found)
    distributed.destroy_process_group()


def ddp(rows: int, epochs: int) -> tuple[float, float]:
    """Steps a second of DDP, and the loss in the end."""
    # Not torch.multiprocessing.spawn, whose processes now and then abort as they end.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=ddp_rank, args=(rank, folder, rows, epochs))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        seconds, loss = map(float, Path(folder, "found").read_text().split())
    return 1 / seconds, loss


def main() -> None:
    chosen = options(__doc__, repeat=5, epochs=10)
    rows, epochs = (4096, 2) if chosen.quick else (204_800, chosen.epochs)
    steps = rows // (RANKS * BATCH)
    if not installed("PyTorch", "torch"):
        return
    from dps.torch import TorchRegressor

    X, y = make(rows)
    speeds: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    with cluster(RANKS) as client:
        chunks = rows // RANKS
        lazy = [client.persist(da.from_array(values, chunks=(chunks, *values.shape[1:])))
                for values in (X, y)]  # fmt: skip
        for turn in range(chosen.repeat):
            for mode in ("sync", "async", "allreduce"):
                model = TorchRegressor(
                    network(), optimizer="adam", learning_rate=RATE, mode=mode, tol=None,
                    batch_size=BATCH if mode == "async" else RANKS * BATCH, max_iter=epochs,
                    random_state=turn, n_replicas=RANKS,
                ).fit(*lazy)  # fmt: skip
                epoch = statistics.median(record["seconds"] for record in model.history_)
                speeds.setdefault(f"dps {mode}", []).append(steps / epoch)
                losses.setdefault(f"dps {mode}", []).append(loss_of(model.module_))
            speed, loss = ddp(rows, epochs)
            speeds.setdefault("PyTorch DDP over gloo", []).append(speed)
            losses.setdefault("PyTorch DDP over gloo", []).append(loss)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ends = {name: statistics.median(values) for name, values in losses.items()}
    peer = "PyTorch DDP over gloo"
    print(f"{RANKS} replicas, {FEATURES}-{HIDDEN}-1, {BATCH} rows each and step, {epochs} epochs\n")
    table(
        ("", "steps a second", "times faster", "loss in the end"),
        (
            (name, f"{speed:,.0f}", f"{speed / medians[peer]:.2f}", f"{ends[name]:.4f}")
            for name, speed in medians.items()
        ),
    )
    bars(
        ("sync: times the steps of DDP", medians["dps sync"] / medians[peer], ">=", 3),
        ("sync: its loss, as a share of DDP's", ends["dps sync"] / ends[peer], "<=", 1.02),
        ("async: its loss, as a share of sync's", ends["dps async"] / ends["dps sync"], "<=", 1.02),
    )


if __name__ == "__main__":
    main()
