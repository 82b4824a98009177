"""Figures and events as text, for pages and reports.

Pure functions of an event or a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def count(number: float) -> str:
    """Format a number with three digits and a suffix.

    Examples
    --------
    >>> [count(number) for number in (0, 7, 999, 1234, 28_388_816, 3.2e9, 0.25)]
    ['0', '7', '999', '1.23k', '28.4M', '3.20G', '0.250']
    """
    if not math.isfinite(number):
        return "∞" if number > 0 else "–"
    scaled, units = float(number), iter(("", "k", "M", "G", "T"))
    unit = next(units)
    while abs(scaled) >= 999.5 and (bigger := next(units, None)) is not None:
        scaled, unit = scaled / 1000, bigger
    if not unit and scaled == int(scaled):
        return str(int(scaled))
    digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:.{digits if unit else digits + 1}f}{unit}"


def duration(seconds: float) -> str:
    """Format seconds as Dask does, or None as a dash.

    Examples
    --------
    >>> [duration(span) for span in (0.0042, 9.94, 93, 7260, float("nan"))]
    ['4.20 ms', '9.94 s', '93.00 s', '2hr 1m', '–']
    """
    from dask.utils import format_time

    return str(format_time(seconds)) if math.isfinite(seconds) else "–"


def loss(value: float | None) -> str:
    """Format a loss, or None as a dash.

    Examples
    --------
    >>> loss(0.46537112), loss(None), loss(123456.0)
    ('0.4654', '–', '1.235e+05')
    """
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def percent(share: float) -> str:
    """Format a share of 1.

    Examples
    --------
    >>> percent(0.62), percent(0.003), percent(0.0)
    ('62%', '<1%', '0%')
    """
    return "<1%" if 0 < share < 0.005 else f"{100 * share:.0f}%"


def host(worker: str) -> str:
    """Return the address of a worker without its protocol.

    Examples
    --------
    >>> host("tcp://10.0.0.7:4033"), host("this process")
    ('10.0.0.7:4033', 'this process')
    """
    return worker.rpartition("://")[2]


def staleness(counts: Sequence[int]) -> str:
    """Describe the staleness of pushes, by the buckets of :mod:`dps.monitor.events`.

    Examples
    --------
    >>> staleness([5, 3, 0, 1])
    '0: 5, 1: 3, 4–7: 1'
    """
    said = []
    for bucket, pushes in enumerate(counts):
        low, high = (1 << bucket) >> 1, max(0, (1 << bucket) - 1)
        if pushes:
            said.append(f"{low}: {pushes:,}" if low == high else f"{low}–{high}: {pushes:,}")
    return ", ".join(said)


def sentence(event: Mapping[str, Any]) -> str | None:
    """Describe an event by a sentence; None for events that only carry figures.

    Examples
    --------
    >>> sentence({"kind": "stopped", "reason": "converged", "epochs": 1, "loss": 0.5,
    ...           "seconds": 3.0})
    'Converged after 1 epoch and 3.00 s, with a loss of 0.5.'
    >>> sentence({"kind": "shard"})
    """
    say = _SENTENCES.get(event["kind"])
    return None if say is None else say(event)


def method(name: str) -> str:
    """Return an optimizer's name as people write it.

    Examples
    --------
    >>> method("lbfgs"), method("adam")
    ('L-BFGS', 'Adam')
    """
    return _METHODS.get(name, name.capitalize())


_METHODS = {"lbfgs": "L-BFGS", "sgd": "SGD", "adamw": "AdamW", "scaledadagrad": "ScaledAdagrad"}


def plural(number: int, noun: str) -> str:
    """Format a number of things.

    Examples
    --------
    >>> plural(1, "shard"), plural(2_000, "row")
    ('1 shard', '2,000 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _started(event: Mapping[str, Any]) -> str:
    carried = event["epochs_before"]
    before = f", after {plural(carried, 'epoch')} before" if carried else ""
    return (
        f"Starts in {event['mode']} by {method(event['optimizer'])}: "
        f"{plural(len(event['replicas']), 'replica')}, {plural(len(event['shards']), 'shard')}, "
        f"{plural(event['rows'], 'row')}, {plural(event['parameters'], 'parameter')}{before}."
    )


def _epochs(event: Mapping[str, Any]) -> str | None:
    if not event["epochs"]:
        return None
    last = event["epochs"][-1]
    validation = last["validation_loss"]
    held_out = "" if validation is None else f", {loss(validation)} on held-out rows"
    return f"Epoch {last['epoch']:,}: loss {loss(last['loss'])}{held_out}."


def _straggler(event: Mapping[str, Any]) -> str:
    where = f"Replica {event['rank']} on {host(event['replica_worker'])}"
    if not event["slow"]:
        return f"{where} has caught up."
    return f"{where} is slow: {event['why']}."


def _recovered(event: Mapping[str, Any]) -> str:
    epoch = event["epoch"] - event["redone"]
    dropped = f", without {plural(event['dropped'], 'row')}" if event["dropped"] else ""
    if event["loading"]:
        return f"Lost {event['what']}: its data was loaded again."
    how = f"goes on with step {event['steps'] + 1:,}" if event["steps"] else "begins again"
    return f"Lost {event['what']}: epoch {epoch:,} {how}{dropped}."


def _stopped(event: Mapping[str, Any]) -> str:
    how = {
        "converged": "Converged",
        "max_iter": "Ended by max_iter",
        "interrupted": "Interrupted",
    }.get(event["reason"], event["reason"])
    ended = "" if event["loss"] is None else f", with a loss of {loss(event['loss'])}"
    return (
        f"{how} after {plural(event['epochs'], 'epoch')} and {duration(event['seconds'])}{ended}."
    )


def _failed(event: Mapping[str, Any]) -> str:
    place = [
        f"replica {event['rank']}" if event["rank"] is not None else "",
        f"on {host(event['worker'])}" if event["worker"] else "",
        f"in step {event['step']:,}" if event["step"] is not None else "",
    ]
    where = " ".join(part for part in place if part)
    message = event["message"].rstrip(".")
    return f"Failed after {duration(event['seconds'])}{', ' if where else ''}{where}: " + (
        f"{event['error']}: {message}."
    )


_SENTENCES = {
    "started": _started,
    "epochs": _epochs,
    "straggler": _straggler,
    "recovered": _recovered,
    "stopped": _stopped,
    "failed": _failed,
}
