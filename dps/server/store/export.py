"""Exports of snapshots in a thread of the shard's process, during training.

The caller decides what an export does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dps.server.store.snapshots import Snapshot, Snapshots

#: Takes the pieces of a snapshot in order; its result travels to the process that asked for it.
Write = Callable[[Iterable[Snapshot]], Any]
#: The epochs, and steps of the next epoch, of a snapshot (None: without one), and the function.
ExportRequest = tuple[tuple[int, int] | None, Write]

#: Seconds in which a thread must notice that it should end.
_JOIN_SECONDS = 2.0


@dataclass(frozen=True)
class ExportResult:
    """The result of an export."""

    results: tuple[Any, ...] = ()  # the result for each snapshot
    error: OSError | None = None  # the reason of a failure
    overtaken: bool = False  # whether a newer snapshot replaced one during the export


class Exporter:
    """Exports snapshots in a thread.

    copied: whether snapshots are copied first, since they may be overwritten during the export.
        Snapshots in a file are never copied, because they would not fit in memory.
    Raises LookupError: a snapshot to be copied does not exist, or not any more.
    """

    def __init__(self, snapshots: Snapshots, asked: Iterable[ExportRequest], copied: bool) -> None:
        copied &= not snapshots.spilled
        self._asked: list[tuple[Iterable[Snapshot], Write]] = []
        for when, write in asked:
            pieces = iter(()) if when is None else snapshots.pieces(*when)
            if copied:
                pieces = iter([piece._replace(values=piece.values.copy()) for piece in pieces])
            self._asked.append((pieces, write))
        self._ended = False
        self._written: ExportResult | None = None
        self._thread = threading.Thread(target=self._run, name="dps-checkpoint", daemon=True)
        self._thread.start()

    @property
    def written(self) -> ExportResult | None:
        """The result of the export; None while it runs."""
        return self._written

    def _run(self) -> None:
        try:
            results = tuple(write(self._while_wanted(pieces)) for pieces, write in self._asked)
            self._written = ExportResult(results)
        except LookupError:
            self._written = ExportResult(overtaken=True)
        except OSError as error:
            self._written = ExportResult(error=error)
        except Exception as error:  # file systems raise exceptions of their own
            self._written = ExportResult(error=OSError(f"{type(error).__name__}: {error}"))
        finally:
            self._asked = []

    def _while_wanted(self, pieces: Iterable[Snapshot]) -> Iterator[Snapshot]:
        for piece in pieces:
            if self._ended:
                raise OSError("the shard was closed meanwhile")
            yield piece

    def close(self) -> None:
        """End it after the current piece, for which it waits a moment."""
        self._ended = True
        with suppress(RuntimeError):  # its own thread closes it
            self._thread.join(_JOIN_SECONDS)
