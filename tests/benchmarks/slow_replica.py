"""Four replicas, one four times as slow: their rows a second over those of four equal ones.

    python tests/benchmarks/slow_replica.py [--repeat K] [--quick]

Gradients sleep and compute nothing, so the protocol is measured, on any number of cores. A step is
one sleep, or four for the slow replica. One epoch, in threads of this process. Rows count until the
first replica has no more to do. "possible" is the speed if the mode's own work took no time: in
sync all replicas are as slow as the slowest. With a backup the other three keep their pace, and
with `late_gradients="add"` the rows of the slow one count, too. In async all four keep their pace.
With `max_delay` they do until the slow one is that many steps behind. Interleaved; medians.
"""

from __future__ import annotations

import threading
import time
from dataclasses import fields
from typing import Any

import numpy as np

import dps
from dps.models import Batch
from measure import bars, options, table, take_turns

REPLICAS, SLOWER, ROWS, DELAY = 4, 4, 8, 8


class Sleeping:
    """A mean, each of whose gradients takes a while; the first replica that asks is slow."""

    seconds = 0.0
    lock = threading.Lock()
    ended: dict[int, list[float]]
    rows: dict[int, list[int]]

    def __init__(self, n_features: int, n_outputs: int) -> None:
        self.layout = {"mean": ()}

    def init(self, rng: np.random.Generator) -> Any:
        return {"mean": 0.0}

    def raw(self, params: Any, batch: Batch) -> Any:
        return np.full((batch.rows, 1), params["mean"])

    def loss_gradient(self, params: Any, batch: Batch, out: Any) -> float:
        here = threading.get_ident()
        with Sleeping.lock:
            mine = Sleeping.ended.setdefault(here, [])
            slow = next(iter(Sleeping.ended)) == here
        time.sleep(Sleeping.seconds * (SLOWER if slow else 1))
        away = params["mean"] - batch.y
        out["mean"] += away.sum()
        mine.append(time.monotonic())
        Sleeping.rows.setdefault(here, []).append(batch.rows)
        return float((away**2).sum() / 2)


def possible(mode: dps.Mode, steps: int) -> float:
    """Return the possible rows a second over those of as many equal replicas."""
    if isinstance(mode, dps.Sync):
        if not mode.backups:
            return 1 / SLOWER
        late = 1 / SLOWER if mode.late_gradients == "add" else 0.0
        return (REPLICAS - 1 + late) / REPLICAS
    delay = getattr(mode, "max_delay", None)
    if delay is None:
        return (REPLICAS - 1 + 1 / SLOWER) / REPLICAS
    slow = max(steps - delay, steps // SLOWER)
    return ((REPLICAS - 1) * steps + slow) / (REPLICAS * SLOWER * slow)


def main() -> None:
    chosen = options(__doc__, repeat=3)
    steps, Sleeping.seconds = (25, 0.01) if chosen.quick else (200, 0.01)
    n = steps * REPLICAS * ROWS
    X, y = np.zeros((n, 1)), np.random.default_rng(0).normal(size=n)
    modes: dict[str, dps.Mode] = {
        "sync": dps.Sync(),
        "backups=1": dps.Sync(backups=1),
        "backups=1, late_gradients='add'": dps.Sync(backups=1, late_gradients="add"),
        "async": dps.Async(),
    }
    if any(field.name == "max_delay" for field in fields(dps.Async)):
        modes[f"max_delay={DELAY}"] = dps.Async(max_delay=DELAY)  # type: ignore[call-arg]

    def fit(mode: dps.Mode) -> Any:
        together = not isinstance(mode, dps.Async)

        def run(turn: int) -> Any:
            Sleeping.ended, Sleeping.rows = {}, {}
            model = dps.ModelRegressor(
                Sleeping, mode=mode, n_replicas=REPLICAS, max_iter=1, tol=None, optimizer="sgd",
                batch_size=ROWS * (REPLICAS if together else 1), learning_rate=0.1,
                random_state=turn,
            )  # fmt: skip
            model.fit(X, y)
            until = min(times[-1] for times in Sleeping.ended.values())
            seen = [
                rows
                for rank, times in Sleeping.ended.items()
                for rows, ended in zip(Sleeping.rows[rank], times, strict=True)
                if ended <= until
            ]
            began = min(times[0] for times in Sleeping.ended.values()) - Sleeping.seconds
            counted = model.history_[0]["rows"] / sum(map(sum, Sleeping.rows.values()))
            model.speed_ = sum(seen) * counted / (until - began)
            return model

        return run

    def judge(model: Any) -> dict[str, float]:
        record = model.history_[0]
        return {
            "share": model.speed_ * Sleeping.seconds / (REPLICAS * ROWS),
            "lost": record["rows_dropped"] / n,
        }

    found = take_turns({name: fit(mode) for name, mode in modes.items()}, chosen.repeat, judge)
    allowed = {name: possible(mode, steps) for name, mode in modes.items()}
    table(
        ("mode", "of 4 equal", "possible", "of that", "rows dropped"),
        [
            (name, f"{v['share']:.0%}", f"{allowed[name]:.0%}",
             f"{v['share'] / allowed[name]:.0%}", f"{v['lost']:.0%}")
            for name, v in found.items()
        ],
    )  # fmt: skip
    bars(
        ("backups=1: of 4 equal", found["backups=1"]["share"], ">=", 0.7),
        *((f"{name}: of what is possible", v["share"] / allowed[name], ">=", 0.9)
          for name, v in found.items() if isinstance(modes[name], dps.Async)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
