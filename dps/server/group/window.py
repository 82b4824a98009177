"""The window of a group: the memory at a shard in which its ranks meet, and its words.

What the shard holds for longer than a group lasts is its store (``store.py``). Owns where
everything lies in a window and what each word means. It knows no mode: the order in which words are
written is a step's (``dps/_runtime``) or an operation's (``operations.py``).

A group is made for one generation of a fit: an ordered tuple of ranks. Its window is made with it
and thrown away with it, so every sequence number, claim and count is that of one generation. A rank
that still works in the window of an earlier one finds it stopped.

Words of a window
    STOP      0: run; FINISHED: the last epoch is closed; ABORTED: an error somewhere
    OPEN      1: pushes may begin; 0: a snapshot wants quiet (async)
    CLOSED    epochs closed
    INTERIM   snapshots within epochs that have been published
    REPORTED  two words, for even and odd epochs: reports received
    ONE_APPLIES  1: the rank that arrives last works for all; 0: each does so on its slice
    COUNT     ranks that have arrived in an exchange, then those that have used their slice
    ARRIVED   sequence number of the last exchange or broadcast at which all have arrived, if the
              ranks wait for that
    DONE      sequence number of the last exchange or broadcast that is over
    ANSWERED  sequence number of the last answer that the ranks of a host share (`HostReducer`)
    TICKETS   given out, where ranks write one after the other (``asynchronous.pyx``)
    TURN      tickets whose ranks have written
    STEP      updates done and gradients taken, where an update is of the first (``backups.pyx``)
    TAKEN     gradients that lie complete in slots, of those that STEP counts

Words of a rank (only that rank, or the Actor on its behalf, writes them)
    CLAIM     the attempt that owns the rank; set once, 0 before (the fence)
    LEASE     the number of a file that the rank's process has locked, see ``lease.py``; 0 before;
              LEFT: it has gone in good order; LOST: its connection has ended without that
    ARRIVED   sequence number of the last gradient that lies complete in the slot, or of the last
              broadcast before which this rank has read what there was
    DONE      sequence number of the last exchange whose slice this rank has used
    REDUCED   number of reductions this rank has contributed to
    FREE      1: not pushing; 0: in the middle of a push (async)
    ENDED     epochs this rank has reported
    BEAT      heartbeats while it reads data
    ROWS      rows behind the gradient in the slot
    LATE      the last step in which a gradient counts that has come too late for its own
    LATE_ROWS rows behind it
    RING      number of the last message of a ring that this rank has put here (``ring.pyx``)
    CLOCK     steps this rank has taken, where the distance of ranks is bounded (``bounded.pyx``)
    GIVEN     steps of which it has handed the gradient over, where none may be ahead
    TICKET    its last one of TICKETS, from 1
    WAITS     looks around while it waits for others, about one a second

What a rank counts for those who watch the fit lies in `activity`; no protocol looks at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps._cores import usable_cores
from dps._runtime.shared import words
from dps._runtime.shared.activity import WIDTH
from dps._runtime.shared.words import Header
from dps.errors import StoppedError, WindowError
from dps.server.memory.arrays import Regions, Shapes, laid_out
from dps.server.memory.files import SharedFile
from dps.server.store.store import Store, StoreSpec

FINISHED = 1
ABORTED = 2

#: Doubles of a reduction, of notes, and of a closed record, which has one more for each rank.
REDUCTION_WIDTH = 64
NOTES_WIDTH = 8
RECORD_WIDTH = 24
#: Doubles that a rank notes with a snapshot within an epoch, and that all ranks share.
INTERIM_WIDTH = 4

#: Work, in elements summed: the update of an element, and the largest amount that one rank does
#: for all, if each rank has a core, and per rank if ranks outnumber cores.
_UPDATE_WORK, _LITTLE_WORK, _LITTLE_WORK_PER_RANK = 8, 1 << 11, 1 << 13
_NEVER_AWAITED = 1 << 62
#: Bytes that a slot takes at least.
_LEAST = 1 << 16


class Word(IntEnum):
    """Words of a window."""

    STOP = words.W_STOP
    OPEN = words.W_OPEN
    CLOSED = words.W_CLOSED
    REPORTED_EVEN = words.W_REPORTED_EVEN
    REPORTED_ODD = words.W_REPORTED_ODD
    ANSWERED = words.W_ANSWERED
    TICKETS = words.W_TICKETS
    TURN = words.W_TURN
    STEP = words.W_STEP
    TAKEN = words.W_TAKEN
    COUNT = words.W_COUNT
    ONE_APPLIES = words.W_ONE_APPLIES
    ARRIVED = words.W_ARRIVED
    DONE = words.W_DONE
    INTERIM = words.W_INTERIM


class Field(IntEnum):
    """Words of a rank."""

    CLAIM = words.R_CLAIM
    ARRIVED = words.R_ARRIVED
    DONE = words.R_DONE
    REDUCED = words.R_REDUCED
    FREE = words.R_FREE
    ENDED = words.R_ENDED
    BEAT = words.R_BEAT
    ROWS = words.R_ROWS
    WAITS = words.R_WAITS
    LEASE = words.R_LEASE
    RING = words.R_RING
    CLOCK = words.R_CLOCK
    GIVEN = words.R_GIVEN
    TICKET = words.R_TICKET
    LATE = words.R_LATE
    LATE_ROWS = words.R_LATE_ROWS


#: Words that change while a rank works, or checks others as it waits. Only a silent rank is stuck.
_PROGRESS = (
    Field.ARRIVED, Field.DONE, Field.REDUCED, Field.ENDED, Field.BEAT, Field.RING, Field.WAITS,
)  # fmt: skip
#: Their names.
PROGRESS = tuple(field.name for field in _PROGRESS)


class Wait(NamedTuple):
    """A condition to wait for: word `of` of every rank, or of the window, is at least `value`."""

    of: Field | Word
    value: int


@dataclass(frozen=True)
class WindowSpec:
    """The specification of a window; both sides compute the same layout from it."""

    fit: str  # id of the fit, hexadecimal
    n_ranks: int
    store: StoreSpec  # the shard's store
    history: int = 1  # number of records of closed epochs
    # The ranks that take part in steps, one per host if hosts sum; their gradients include those of
    # the other ranks. Empty: all.
    members: tuple[int, ...] = ()
    ring: int = 0  # elements of the longest message of a ring; 0 without a ring
    # Gradients per update if others may come late, which then have slots of their own; 0: all of
    # them.
    quorum: int = 0
    gathers: bool = False  # whether gradients are summed in `total` before they are applied
    rounds: bool = False  # whether means are rounded to bfloat16, which `total` then holds
    reported: int = 16  # doubles in a rank's report of an epoch

    @property
    def n_slots(self) -> int:
        """Number of gradient slots."""
        return 2 * len(self.active) if self.quorum else len(self.active)

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that take part in steps."""
        return self.members or tuple(range(self.n_ranks))

    @property
    def left(self) -> int:
        """In a ring, the rank that sends to this shard's rank."""
        return self.active[self.shard % len(self.active) - 1]

    @property
    def shard(self) -> int:
        """Number of the shard."""
        return self.store.shard

    @property
    def size(self) -> int:
        """Elements of the flat vector on this shard."""
        return self.store.size

    @property
    def dtype(self) -> str:
        """Dtype of vectors."""
        return self.store.dtype

    def shapes(self) -> Shapes:
        """The arrays of a window, see `Window`."""
        size, dtype = self.size, self.dtype
        stride = -(-size // 32) * 32  # slots of two ranks never share a cache line
        each = self.store.key_width
        keyed = int(each > 0)
        stride, n_keys = -(-stride // (each or 1)) * (each or 1), size // each if each else 0
        rounds = 2 * (len(self.active) - 1) if self.ring else 0
        words = Header.nbytes(self.n_ranks, len(Word), len(Field)) // 8
        return {
            "_words": ((words,), "int64"),
            "begun_at": ((1,), "int64"),
            "activity": ((self.n_ranks, WIDTH), "int64"),
            "reductions": ((2, self.n_ranks, REDUCTION_WIDTH), "float64"),
            "notes": ((2, self.n_ranks, NOTES_WIDTH), "float64"),
            "reports": ((2, self.n_ranks, self.reported), "float64"),
            "history": ((self.history, RECORD_WIDTH + self.n_ranks), "float64"),
            "interims": ((2, 1 + self.n_ranks, INTERIM_WIDTH), "float64"),
            "total": ((size,), dtype),
            "left_over": ((size * self.rounds,), dtype),
            "ring": ((rounds, self.ring), dtype),
            "ring_rows": ((rounds,), "int64"),
            "key_counts": ((self.n_slots, keyed * len(self.active)), "int64"),
            "total_keys": ((n_keys,), "int64"),
            "total_counts": ((keyed * len(self.active),), "int64"),
            "gathered": ((8 * self.gathers,), "float64"),
            "marks": ((n_keys * self.gathers,), "int8"),
            "slots": ((self.n_slots, stride), dtype),
            "keys": ((self.n_slots, keyed * stride // (each or 1)), "int64"),
        }

    @property
    def growing(self) -> str | None:
        """The gradient slots of steps by keys, which take the memory that a batch touches."""
        return "slots" if self.store.key_width else None


def _one_applies(spec: WindowSpec, cores: int) -> bool:
    """Return whether one rank should apply a mean, and not each rank its slice."""
    if spec.quorum or spec.store.key_width:
        return spec.quorum > 0
    n = len(spec.active)
    little = _LITTLE_WORK if n <= cores else _LITTLE_WORK_PER_RANK * n
    return spec.size * (n + _UPDATE_WORK) <= little


def slice_width(size: int, n_ranks: int, key_width: int) -> int:
    """Return the number of elements in a rank's slice; the last slices may have fewer."""
    unit = lcm(32, key_width or 1)
    return -(-size // n_ranks // unit) * unit or unit


class Window(Regions):
    """The memory of a group at one shard.

    store: what the shard holds.
    words: the words named in this module's docstring.
    begun_at: (1,) int64 array, updates that the store had when the group began.
    activity: (n_ranks, WIDTH) int64 array, what each rank has done, see ``shared/activity.pyx``.
    slots: (n_slots, >= n) array, a gradient sum for each rank that takes part in steps, in their
        order; behind these, as many that have come late.
    total: (n,) array, a mean over ranks: of gradients where parameters are not held, and of what
        ranks bring to L-BFGS; or what rank 0 has broadcast.
    left_over: (n,) array, what rounding the last mean has left over, where means are rounded.
    ring: (2 (members - 1), spec.ring) array.
    ring_rows: (2 (members - 1),) int64 array, a place for each message of a step that goes round,
        and the rows behind it.
    keys: (n_slots, >= n / key_width) int64 array, where gradients are sparse, what the values in a
        slot belong to: keys of the first slice come first.
    key_counts: (n_slots, n_slices) int64 array, numbers of keys of each slot (rows) in each slice
        (columns).
    total_keys: (n / key_width,) int64 array.
    total_counts: (n_slices,) int64 array, the same of `total`; the values of each begin where the
        slice does.
    gathered: (8,) float64 array, of the gradients in `total`, where they are gathered: how many
        they are, their rows, the learning rate of the last one, their keys; and after how many
        epochs, and updates, all were last applied.
    marks: (n / key_width,) int8 array, 1 where a key is among `total_keys`, in the same place.
    reductions: (2, n_ranks, REDUCTION_WIDTH) float64 array.
    notes: (2, n_ranks, NOTES_WIDTH) float64 array, what goes along with the values of a mean or a
        broadcast of even or odd number.
    reports: (2, n_ranks, spec.reported) float64 array, of even and odd epochs.
    history: (spec.history, RECORD_WIDTH + n_ranks) float64 array, record of closed epoch e in row
        ``e % spec.history``.
    interims: (2, 1 + n_ranks, INTERIM_WIDTH) float64 array, of the last two snapshots within an
        epoch: epochs closed and steps taken since, then what each rank noted.
    """

    spec: WindowSpec
    store: Store
    begun_at: NDArray[np.int64]
    activity: NDArray[np.int64]
    slots: NDArray[np.floating]
    total: NDArray[np.floating]
    left_over: NDArray[np.floating]
    ring: NDArray[np.floating]
    ring_rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    key_counts: NDArray[np.int64]
    total_keys: NDArray[np.int64]
    total_counts: NDArray[np.int64]
    gathered: NDArray[np.float64]
    marks: NDArray[np.int8]
    reductions: NDArray[np.float64]
    notes: NDArray[np.float64]
    reports: NDArray[np.float64]
    history: NDArray[np.float64]
    interims: NDArray[np.float64]
    _words: NDArray[np.int64]

    def __init__(self, spec: WindowSpec, memory: Any, file: SharedFile | None = None) -> None:
        super().__init__(spec, memory, file)
        self.words = Header(self._words, spec.n_ranks, len(Word), len(Field), int(Word.STOP))

    @classmethod
    def create(cls, spec: WindowSpec, store: Store, *, shared: bool = False) -> Window:
        """Create the window of a new group."""
        window = cls.make(spec, spec.fit, shared=shared)
        window.store = store
        window.begun_at[0] = store.version
        window.words.store(Word.OPEN, 1)
        window.words.store(Word.ONE_APPLIES, _one_applies(spec, usable_cores()))
        for rank in range(spec.n_ranks):
            window.words.rank_store(rank, Field.FREE, 1)
            if rank not in spec.active:  # no rank waits for it
                window.words.rank_store(rank, Field.ARRIVED, _NEVER_AWAITED)
                window.words.rank_store(rank, Field.DONE, _NEVER_AWAITED)
            if rank != spec.left:
                window.words.rank_store(rank, Field.RING, _NEVER_AWAITED)
        return window

    def slice(self, rank: int) -> tuple[int, int]:
        """Return the elements that `rank` reduces and updates for all."""
        if rank not in self.spec.active:
            return 0, 0
        n, width, place = self.spec.size, self.slice_width, self.place(rank)
        return min(n, place * width), min(n, (place + 1) * width)

    def place(self, rank: int) -> int:
        """Return the number of a rank's slice."""
        active = self.spec.active
        return active.index(rank) if rank in active else -1

    @property
    def slice_width(self) -> int:
        """Number of elements in a slice; the last ones may have fewer."""
        return slice_width(self.spec.size, len(self.spec.active), self.spec.store.key_width)

    def grow(self, slot: int, nbytes: int) -> int:
        """Make room in a slot for `nbytes` bytes of values and for their keys; return its size.

        Raises StoppedError: the window has been released.
        Raises WindowError: there is no room.
        """
        values, keys = self.slots[slot], self.keys[slot]
        whole = int(values.nbytes)
        if self.file is None or self.spec.growing is None:
            return whole
        regions, _ = laid_out(self.spec.shapes())
        there = min(whole, max(_LEAST, 1 << (int(nbytes) - 1).bit_length()))
        n_keys = -(-there // (values.itemsize * self.spec.store.key_width))
        try:
            self.file.commit(regions["slots"][0] + slot * whole, there)
            self.file.commit(
                regions["keys"][0] + slot * keys.nbytes, min(keys.size, n_keys) * keys.itemsize
            )
        except FileNotFoundError:
            raise StoppedError("the fit was stopped") from None
        except OSError as error:
            raise WindowError(
                f"shared memory has no room for the {nbytes} bytes that a batch touches ({error}): "
                f"give {self.file.path.parent} more, or a mode access='stream'"
            ) from error
        return there

    def is_claimed(self, rank: int) -> bool:
        """True if the rank's task has begun and has claimed the rank."""
        return self.words.rank_load(rank, Field.CLAIM) != 0

    def progress(self, rank: int) -> tuple[int, ...]:
        """Counters of a rank, which change while it makes progress."""
        return tuple(self.words.rank_load(rank, field) for field in _PROGRESS)

    def stop(self, reason: int) -> None:
        """End every wait; the first reason counts."""
        self.words.store_once(Word.STOP, reason)

    @property
    def stopped(self) -> int:
        """0, FINISHED or ABORTED."""
        return self.words.load(Word.STOP)

    def ready(self, wait: Wait) -> bool:
        """True if a wait would end at once."""
        if isinstance(wait.of, Field):
            return self.words.ready(wait.of, wait.value)
        return self.words.word_ready(wait.of, wait.value)

    def wait(self, wait: Wait, seconds: float) -> int:
        """Wait natively: READY, STOPPED or LATE."""
        if isinstance(wait.of, Field):
            return self.words.wait(wait.of, wait.value, seconds)
        return self.words.word_wait(wait.of, wait.value, seconds)

    def close(self) -> None:
        """Stop all users of the window and release its file."""
        self.stop(ABORTED)
        super().close()
