"""Leases, by which ranks learn of another rank's death without the scheduler.

A rank that has mapped a window holds a lock on a small file beside it, which the system releases
when the process dies. The number of the file is in the rank's word LEASE. For a remote rank the
thread at the shard writes LOST when its connection ends.

Protocol. The rank creates the file and locks it, then writes LEASE. When it leaves in good order it
writes LEFT, and only then unlinks the file. So if the file of a number is missing or not locked,
its process has died; the rank that finds it unlinks it. A crash before LEASE is written leaves a
file with a free lock, which is swept like windows, and a rank that looks slow to others: their
deadline ends the wait.
"""

from __future__ import annotations

from contextlib import closing

from dps.server.group.window import Field, Window
from dps.server.memory.files import LockedFile, folder

LEFT = -1
LOST = -2


class Lease:
    """A rank's lease, for its holder.

    rank: its number in the window.
    """

    def __init__(self, window: Window, rank: int) -> None:
        self._window, self._rank = window, rank
        self._file = LockedFile.create(window.spec.fit)
        window.words.rank_store(rank, Field.LEASE, int(self._file.path.name.rpartition("-")[2], 16))

    @classmethod
    def of(cls, window: Window, rank: int) -> Lease | None:
        """Take a lease if others can see it; otherwise there are only deadlines."""
        try:
            return None if window.file is None else cls(window, rank)
        except OSError:  # no room
            return None

    def end(self) -> None:
        """Leave in good order."""
        self._window.words.rank_store(self._rank, Field.LEASE, LEFT)
        self._file.close()


def loss_of(window: Window, rank: int) -> str | None:
    """Return what happened to a lost rank, as far as visible; None if it is not lost.

    No file stays open: if all ranks check all others there would be thousands.
    """
    number = window.words.rank_load(rank, Field.LEASE)
    if number <= 0:
        return "the connection to a replica has ended" if number == LOST else None
    try:
        with closing(LockedFile.open(folder() / f"dps-{window.spec.fit}-{number:016x}")) as file:
            gone = file.owner_is_gone()
            if gone:
                file.path.unlink(missing_ok=True)
    except FileNotFoundError:
        gone = True
    except OSError:  # too many open files; the deadline still applies
        gone = False
    # It may have left in good order meanwhile.
    gone = gone and window.words.rank_load(rank, Field.LEASE) == number
    return "the process of a replica has died" if gone else None
