"""Leases: how the others learn that a rank's process has died, without asking the scheduler.

A rank that has mapped a window holds a lock on a small file beside it, which the system gives back
when the process dies. The file's number stands in the rank's word LEASE. For a rank that is far the
thread at the shard that serves it says LOST when its connection ends.

Protocol. The rank makes the file and locks it, then writes LEASE. When it goes in good order it
writes LEFT, and only then unlinks the file. So a number whose file is not there, or is not locked,
is that of a process that has died; its finder unlinks the file. A crash before LEASE is
written leaves a file with a free lock, which is swept as windows are, and a rank that no other can
tell from one that is slow: the deadline ends that wait.
"""

from __future__ import annotations

from contextlib import closing

from dps.server.group.window import Field, Window
from dps.server.memory.files import LockedFile, folder

LEFT = -1
LOST = -2


class Lease:
    """A rank's lease, as its holder has it.

    rank: its number there.
    """

    def __init__(self, window: Window, rank: int) -> None:
        self._window, self._rank = window, rank
        self._file = LockedFile.create(window.spec.fit)
        window.words.rank_store(rank, Field.LEASE, int(self._file.path.name.rpartition("-")[2], 16))

    @classmethod
    def of(cls, window: Window, rank: int) -> Lease | None:
        """A lease where others can see it; without one deadlines have to do."""
        try:
            return None if window.file is None else cls(window, rank)
        except OSError:  # no room
            return None

    def end(self) -> None:
        """Leave in good order."""
        self._window.words.rank_store(self._rank, Field.LEASE, LEFT)
        self._file.close()


def loss_of(window: Window, rank: int) -> str | None:
    """The fate of a lost rank, as far as it can be seen; None if it is not lost.

    No file stays open: with all that look at all others there would be thousands.
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
    except OSError:  # there are too many open files: the deadline still holds
        gone = False
    # It may have left in good order meanwhile.
    gone = gone and window.words.rank_load(rank, Field.LEASE) == number
    return "the process of a replica has died" if gone else None
