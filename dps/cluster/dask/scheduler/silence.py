"""Workers that do not answer although Dask considers them alive.

A process notices a lost connection before the scheduler does. The scheduler considers a host that
is cut off alive for half a minute, and a frozen worker for minutes. It runs a function that is
pickled by value, so it does not need dps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from distributed import Client

from dps.cluster.base import grace
from dps.cluster.dask.calls import ask

#: Seconds in which a suspect must answer; others have the rest of `grace`.
_SOON = 1.0


def silent_among(
    client: Client,
    lost: str | None,
    others: Collection[str],
    timeout: float,
    times: tuple[float, ...] | None = None,
) -> set[str]:
    """Return the workers that do not answer; none as soon as the suspect answers.

    lost: the suspect; None: any worker.
    others: workers that may be lost as well, which have more time to answer.
    timeout: seconds for the scheduler.
    times: seconds for the suspect, and longer ones if others have not answered.
    """
    times = times or (min(_SOON, grace() / 2), max(grace() - _SOON, grace() / 2))
    workers = {*others, *([] if lost is None else [lost])}
    found: list[str] = ask(
        client, "_run_on_scheduler", timeout + grace(),
        function=_asking(), workers=sorted(workers), lost=lost, times=times,
    )  # fmt: skip
    return set(found)


def _asking() -> Callable[..., Any]:
    """Return a function for the scheduler, made here so that it is pickled by value."""

    async def silent(
        dask_scheduler: Any, workers: list[str], lost: str | None, times: tuple[float, ...]
    ) -> list[str]:
        import asyncio

        async def answer(worker: str) -> None:
            try:
                await dask_scheduler.rpc(worker).echo(data=b"")
            except OSError:  # it has just died, which Dask will notice
                while worker in dask_scheduler.workers:
                    await asyncio.sleep(0.02)

        left = {
            asyncio.ensure_future(answer(worker)): worker
            for worker in workers
            if worker in dask_scheduler.workers
        }
        silent = list(left.values())
        try:
            for seconds in times if left else ():
                await asyncio.wait(left, timeout=seconds)
                silent = [worker for task, worker in left.items() if not task.done()]
                if lost in left.values() and lost not in silent:
                    return []
                if silent == [lost]:
                    break
            return silent
        finally:
            for task in left:
                task.cancel()

    return silent
