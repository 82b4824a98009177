"""Events of many replicas: their size, and how often they are sent."""

from __future__ import annotations

import sys
from collections import deque
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest

from dps._runtime.shared.activity import EPOCH_ROWS, PUSHES, ROWS, STALE_SUM, STALENESS, STEPS
from dps.monitor.events import replicas_of
from dps.monitor.scheduler.checking import is_sound
from dps.monitor.shard.reporter import Reporter
from dps.monitor.shard.stragglers import medians_of_others
from dps.server.group.window import Window, WindowSpec
from dps.server.shard import MonitorInfo
from dps.server.store.store import Store, StoreSpec

#: Events of a topic that Dask keeps, the share of them that is made here, and their bytes in all.
KEPT, SHARE, MOST = 1000, 1 / 4, 20e6


def size(value: Any) -> int:
    """Bytes of an event as a process has it that has received it."""
    nbytes = sys.getsizeof(value)
    if isinstance(value, dict):
        return nbytes + sum(map(size, value.keys())) + sum(map(size, value.values()))
    if isinstance(value, tuple | list):
        return nbytes + sum(map(size, value))
    return nbytes


@pytest.mark.parametrize("stale", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("n", [8, 300])
def test_events_of_a_long_fit_take_little_memory(n: int, stale: bool) -> None:
    spec = StoreSpec("f00d", 0, 8, "float64")
    window = Window.create(WindowSpec("f00d", n, spec), Store.create(spec, np.zeros((1, 8))))
    sent: deque[dict[str, Any]] = deque(maxlen=int(SHARE * KEPT))

    def log_event(topic: str, event: dict[str, Any]) -> None:
        sent.append(msgpack.unpackb(msgpack.packb({**event, "worker": "tcp://h:1"})))

    loop = SimpleNamespace(add_callback=lambda *_, **__: None)
    worker, now = SimpleNamespace(loop=loop, log_event=log_event), [0.0]
    workers = tuple(f"tcp://10.0.0.{rank}:4242" for rank in range(n))
    reporter = Reporter(worker, window, MonitorInfo(workers, together=not stale), lambda: now[0])
    gaps, last = [], 0.0
    for second in range(1, int(SHARE * 1100) + 1):
        now[0] = float(second)
        window.activity[:, [STEPS, ROWS, EPOCH_ROWS, PUSHES]] = 1_000_000 + 1000 * second
        if stale:
            window.activity[:, STALENESS : STALENESS + 6] = 1000 * second
            window.activity[:, STALE_SUM] = 30_000 * second
        reporter.look()
        if [event["kind"] for event in list(sent)[-2:]] == ["replicas", "shard"]:
            gaps.append(second - last)
            last = second
    assert max(gaps) <= max(2, n / 25)
    assert all(map(is_sound, list(sent)[-20:]))
    each = replicas_of(next(e for e in reversed(sent) if e["kind"] == "replicas")["replicas"])
    assert len(each) == n
    assert len(sent) == sent.maxlen
    assert sum(map(size, sent)) < SHARE * MOST
    reporter.end()


def test_columns_of_unequal_length_are_no_replicas() -> None:
    assert replicas_of({"step": [1, 2], "rows": [1]}) == []
    assert replicas_of({"step": [1, 2], "rows": []}) == []


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_medians_of_others_are_those_of_each_others(n: int) -> None:
    values = np.random.default_rng(n).integers(0, 4, n).astype(float)
    medians = [np.median(np.delete(values, at)) if n > 1 else 0.0 for at in range(n)]
    np.testing.assert_allclose(medians_of_others(values), medians)
