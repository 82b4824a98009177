"""A thread of a shard's process that hands snapshots on, beside those who train.

What is done with them is the caller's: it knows no files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dps.server.store.snapshots import Snapshot, Snapshots

#: Takes the pieces of a snapshot in their order; what it returns travels to who has asked.
Write = Callable[[Iterable[Snapshot]], Any]
#: After how many epochs, and steps of the next, a snapshot was taken, None: without one; and what
#: is done with it.
ExportRequest = tuple[tuple[int, int] | None, Write]

#: Seconds that a thread may need to see that it is to end.
_JOIN_SECONDS = 2.0


@dataclass(frozen=True)
class ExportResult:
    """The result of an export."""

    results: tuple[Any, ...] = ()  # what was returned for each snapshot
    error: OSError | None = None  # why it has failed
    overtaken: bool = False  # whether a snapshot was given up for a newer one meanwhile


class Exporter:
    """Hands snapshots on in a thread of its own.

    copied: whether they are copied first, since they may be written over while they are handed on.
        Those in a file, which do not fit into memory a second time, never are.
    Raises LookupError: one that is copied is not, or no longer, there.
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
        """The result; None while the export runs."""
        return self._written

    def _run(self) -> None:
        try:
            results = tuple(write(self._while_wanted(pieces)) for pieces, write in self._asked)
            self._written = ExportResult(results)
        except LookupError:
            self._written = ExportResult(overtaken=True)
        except OSError as error:
            self._written = ExportResult(error=error)
        except Exception as error:  # of a file system that has errors of its own
            self._written = ExportResult(error=OSError(f"{type(error).__name__}: {error}"))
        finally:
            self._asked = []

    def _while_wanted(self, pieces: Iterable[Snapshot]) -> Iterator[Snapshot]:
        for piece in pieces:
            if self._ended:
                raise OSError("the shard was closed meanwhile")
            yield piece

    def close(self) -> None:
        """End it after the piece at hand, for which it waits a moment."""
        self._ended = True
        with suppress(RuntimeError):  # it is closed by its own thread
            self._thread.join(_JOIN_SECONDS)
