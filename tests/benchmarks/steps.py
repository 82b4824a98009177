"""Synchronous steps a second: dps against PyTorch DDP over gloo.

    python tests/benchmarks/steps.py [--epochs N] [--repeat K] [--quick]

Logistic regression of 100 features by SGD, two processes with one core each, 1,024 rows each and
step, about 488 steps an epoch. dps trains on a LocalCluster, once with the fixed cost of a fit and
once without; DDP's processes run already and have made their first steps when its clock starts.
Rows of one run are interleaved; medians.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from dense import FEATURES, make
from dps import LinearClassifier
from measure import bars, cluster, installed, options, table, timed

BATCH, RATE, RANKS = 1024, 0.1, 2


def ddp_rank(rank: int, folder: str, rows: int, warm_up: int, steps: int) -> None:
    """Train as one of the processes of DDP; the first one writes the seconds of its steps."""
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    generator = torch.Generator().manual_seed(rank)
    X = torch.randn(rows, FEATURES, generator=generator)
    y = (X[:, :3].sum(dim=1) > 0).float()
    model = nn.parallel.DistributedDataParallel(nn.Linear(FEATURES, 1))
    loss, optimizer = nn.BCEWithLogitsLoss(), torch.optim.SGD(model.parameters(), lr=RATE)
    began = 0.0
    for step in range(warm_up + steps):
        if step == warm_up:
            distributed.barrier()
            began = time.perf_counter()
        start = step * BATCH % (rows - BATCH + 1)
        optimizer.zero_grad()
        loss(model(X[start : start + BATCH])[:, 0], y[start : start + BATCH]).backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    if rank == 0:
        Path(folder, "seconds").write_text(str(seconds))
    distributed.destroy_process_group()


def ddp_steps(rows: int, steps: int) -> float:
    """Steps a second of DDP."""
    # Not torch.multiprocessing.spawn, whose processes now and then abort as they end.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = folder, rows, 50, steps
        ranks = [context.Process(target=ddp_rank, args=(r, *arguments)) for r in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return steps / float(Path(folder, "seconds").read_text())


def main() -> None:
    chosen = options(__doc__, repeat=5, epochs=20)
    rows, epochs = (20_000, 3) if chosen.quick else (1_000_000, chosen.epochs)
    steps = -(-rows // (RANKS * BATCH))
    found: dict[str, list[float]] = {"dps sync, whole fit": [], "dps sync, an epoch": []}
    peer = "PyTorch DDP over gloo" if installed("PyTorch", "torch") else None
    with cluster(RANKS) as client:
        X, y = make(client, rows)

        def fit(turn: int) -> Any:
            model = LinearClassifier(
                mode="sync", optimizer="sgd", learning_rate=RATE, batch_size=RANKS * BATCH,
                tol=None, max_iter=epochs, random_state=turn,
            )  # fmt: skip
            return model.fit(X, y)

        fit(0)
        for turn in range(chosen.repeat):
            seconds, model = timed(fit, turn)
            found["dps sync, whole fit"].append(steps * epochs / seconds)
            epoch = statistics.median(record["seconds"] for record in model.history_)
            found["dps sync, an epoch"].append(steps / epoch)
            if peer:
                speed = ddp_steps(rows // RANKS, 3 if chosen.quick else 2 * steps)
                found.setdefault(peer, []).append(speed)

    medians = {name: statistics.median(values) for name, values in found.items()}
    peers = medians[peer] if peer else float("nan")
    print(f"{RANKS} replicas, {FEATURES} features, {BATCH:,} rows each and step; {epochs} epochs\n")
    table(
        ("", "steps a second", "times faster"),
        (
            (name, f"{speed:,.0f}", f"{speed / peers:.1f}" if peer else "-")
            for name, speed in medians.items()
        ),
    )
    # DDP's clock runs while it takes steps, after its start and its data.
    ours = medians["dps sync, an epoch"]
    bars(("sync steps: times those of DDP", ours / peers, ">=", 20))


if __name__ == "__main__":
    main()
