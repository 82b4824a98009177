"""The window: the memory of one shard that replicas reach, and its words.

Owns where everything lies in a window, what each word means, and how one waits. It knows no mode:
the order in which words are written is a step's (``dps/_runtime``) or an operation's
(``operations.py``).

Words of the window
    STOP      0: run; FINISHED: the last epoch is closed; ABORTED: an error somewhere
    VERSION   updates applied to this shard
    OPEN      1: pushes may begin; 0: a snapshot wants quiet (async)
    CLOSED    epochs closed
    SNAPSHOT  two words, of the snapshots at the end of even and of odd epochs: one more than the
              epochs that were closed then; 0 while there is none
    REPORTED  two words, for even and odd epochs: reports received
    SETTLED   two words, of async steps by keys: epochs closed, and updates applied, when no
              coordinate was behind; written while no push is running

Words of a rank (only that rank, or the Actor on its behalf, writes them)
    CLAIM     the attempt that owns the rank; set once, 0 before (the fence)
    ARRIVED   sequence number of the last gradient that lies complete in the slot, or of the last
              broadcast before which this rank has read what there was
    DONE      sequence number of the last update whose slice this rank has applied, or of the last
              broadcast for which it has nothing left to do
    REDUCED   number of reductions this rank has contributed to
    FREE      1: not pushing; 0: in the middle of a push (async)
    ENDED     epochs this rank has reported
    BEAT      heartbeats while it reads data
    ROWS      rows behind the gradient in the slot
    WAITS     looks around while it waits for others, about one a second

What a rank counts for those who watch the fit lies in `activity`; no protocol looks at it.
"""

from __future__ import annotations

import hashlib
import mmap
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps._runtime import words
from dps._runtime.activity import WIDTH, Activity
from dps._runtime.words import LATE, READY, Header
from dps.errors import ServerLostError, StalledError, StoppedError
from dps.optimizers.update import Update
from dps.server.memory import SharedFile

__all__ = [
    "ABORTED",
    "FINISHED",
    "Field",
    "Wait",
    "Watch",
    "Window",
    "WindowSpec",
    "Word",
    "announce",
    "own_window",
]

FINISHED = 1
ABORTED = 2

#: Doubles of a reduction, of notes, of a rank's report of an epoch, and of a closed record, which
#: has one more for each rank.
REDUCTION_WIDTH = 64
NOTES_WIDTH = 8
RECORD_WIDTH = 16

_IDENTITY = 64  # bytes: token (16), digest (32)
_NEVER_AWAITED = 1 << 62
_TICK = 1.0  # seconds between looks at owners and deadlines


class Word(IntEnum):
    """Words of a window."""

    STOP = words.W_STOP
    VERSION = words.W_VERSION
    OPEN = words.W_OPEN
    CLOSED = words.W_CLOSED
    REPORTED_EVEN = words.W_REPORTED_EVEN
    REPORTED_ODD = words.W_REPORTED_ODD
    SETTLED_EPOCHS = words.W_SETTLED_EPOCHS
    SETTLED_VERSION = words.W_SETTLED_VERSION
    SNAPSHOT_EVEN = words.W_SNAPSHOT_EVEN
    SNAPSHOT_ODD = words.W_SNAPSHOT_ODD


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


_PROGRESS = (Field.ARRIVED, Field.DONE, Field.REDUCED, Field.ENDED, Field.BEAT)


class Wait(NamedTuple):
    """What somebody waits for: `of` of every rank, or of the window, is at least `value`."""

    of: Field | Word
    value: int


@dataclass(frozen=True)
class WindowSpec:
    """What a window is made for; both sides compute the same layout from it.

    Parameters
    ----------
    fit : str
        Id of the fit, hexadecimal.
    shard, n_ranks : int
    size : int
        Elements of the flat vector on this shard.
    dtype : str
        ``"float32"`` or ``"float64"``.
    state_rows : int
        Rows of optimizer state.
    holds_parameters : bool
        Whether parameters and state lie in the window. Otherwise it lends slots and
        the place for their mean.
    history : int
        Records of closed epochs that are kept.
    digest : str
        Digest of the model's layout.
    keyed : bool
        Whether gradients are sparse: slots then hold keys beside values.
    members : tuple of int
        The ranks that take part in steps, one for each host; the others' gradients come with
        theirs. Empty: all do.
    """

    fit: str
    shard: int
    n_ranks: int
    size: int
    dtype: str
    state_rows: int
    holds_parameters: bool
    history: int
    digest: str
    keyed: bool = False
    members: tuple[int, ...] = ()

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that take part in steps."""
        return self.members or tuple(range(self.n_ranks))

    def identity(self) -> bytes:
        """32 bytes that differ where the layouts of two windows would."""
        return hashlib.sha256(repr((astuple(self), self.regions())).encode()).digest()

    def regions(self) -> tuple[dict[str, tuple[int, tuple[int, ...], str]], int]:
        """Offset in bytes, shape and dtype of each region; and the bytes of all."""
        stride = -(-self.size // 32) * 32  # slots of two ranks never share a line
        held = self.size if self.holds_parameters else 0
        keyed = int(self.keyed)
        words = Header.nbytes(self.n_ranks, len(Word), len(Field)) // 8
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "identity": ((_IDENTITY,), "uint8"),
            "words": ((words,), "int64"),
            "activity": ((self.n_ranks, WIDTH), "int64"),
            "reductions": ((2, self.n_ranks, REDUCTION_WIDTH), "float64"),
            "notes": ((2, self.n_ranks, NOTES_WIDTH), "float64"),
            "reports": ((2, self.n_ranks, RECORD_WIDTH), "float64"),
            "history": ((self.history, RECORD_WIDTH + self.n_ranks), "float64"),
            "params": ((held,), self.dtype),
            "state": ((self.state_rows, held), self.dtype),
            "slots": ((self.n_ranks, stride), self.dtype),
            "total": ((self.size,), self.dtype),
            "since": ((keyed * held,), "int32"),
            "keys": ((self.n_ranks, keyed * stride), "int32"),
            "key_counts": ((self.n_ranks, keyed * self.n_ranks), "int64"),
            "total_keys": ((keyed * self.size,), "int32"),
            "total_counts": ((keyed * self.n_ranks,), "int64"),
            "snapshots": ((2, 1 + self.state_rows, self.size), self.dtype),
            "snapshot_versions": ((2,), "int64"),
        }
        regions = {}
        offset = 0
        for name, (shape, dtype) in shapes.items():
            regions[name] = (offset, shape, dtype)
            nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            offset += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return regions, offset


class Window:
    """One shard's memory, private to the process or mapped from a file.

    Attributes
    ----------
    spec : WindowSpec
    words : Header
        The words named in this module's docstring.
    activity : (n_ranks, WIDTH) int64 array
        What each rank has done, see ``_runtime/activity.pyx``.
    params : (n,) array
    state : (state_rows, n) array
    slots : (n_ranks, >= n) array
        A gradient sum for each rank.
    total : (n,) array
        A mean over ranks: of gradients where parameters are not held, and of what ranks bring to
        L-BFGS; or what rank 0 has broadcast.
    since : (n,) int32 array
        The step of the epoch up to which a parameter is up to date, see ``_kernels/lazy.pyx``.
    keys : (n_ranks, >= n) int32 array
        Where gradients are sparse, what the values in a slot belong to: those of the first
        rank's slice come first.
    key_counts : (n_ranks, n_ranks) int64 array
        How many of a slot's values (rows) are of each rank's slice (columns).
    total_keys : (n,) int32 array
    total_counts : (n_ranks,) int64 array
        The same of `total`; each rank's values begin where its slice does.
    reductions : (2, n_ranks, REDUCTION_WIDTH) float64 array
    notes : (2, n_ranks, NOTES_WIDTH) float64 array
        What goes along with the values of a mean or a broadcast of even or odd number.
    reports : (2, n_ranks, RECORD_WIDTH) float64 array
    history : (spec.history, RECORD_WIDTH + n_ranks) float64 array
        Record of closed epoch e in row ``e % spec.history``.
    snapshots : (2, 1 + state_rows, n) array
    snapshot_versions : (2,) int64 array
        The version of each snapshot.
    update : Update or None
        How a gradient is applied to `params`.
    """

    activity: NDArray[np.int64]
    params: NDArray[np.floating]
    state: NDArray[np.floating]
    slots: NDArray[np.floating]
    total: NDArray[np.floating]
    since: NDArray[np.int32]
    keys: NDArray[np.int32]
    key_counts: NDArray[np.int64]
    total_keys: NDArray[np.int32]
    total_counts: NDArray[np.int64]
    reductions: NDArray[np.float64]
    notes: NDArray[np.float64]
    reports: NDArray[np.float64]
    history: NDArray[np.float64]
    snapshots: NDArray[np.floating]
    snapshot_versions: NDArray[np.int64]

    def __init__(
        self,
        spec: WindowSpec,
        memory: Any,
        *,
        update: Update | None = None,
        file: SharedFile | None = None,
    ) -> None:
        regions, nbytes = spec.regions()
        if memoryview(memory).nbytes < nbytes:
            raise ValueError(
                f"a window of this kind takes {nbytes} bytes, got {memoryview(memory).nbytes}"
            )
        self.spec = spec
        self.update = update
        self.file = file
        for name, (offset, shape, dtype) in regions.items():
            count = int(np.prod(shape))
            array = np.frombuffer(memory, dtype, count, offset).reshape(shape)
            setattr(self, f"_{name}" if name in ("identity", "words") else name, array)
        self.words = Header(self._words, spec.n_ranks, len(Word), len(Field), int(Word.STOP))

    _identity: NDArray[np.uint8]
    _words: NDArray[np.int64]
    #: Why there is no shared file, although one was wanted.
    unshared: str | None = None

    @classmethod
    def create(cls, spec: WindowSpec, *, update: Update | None, shared: bool) -> Window:
        """Make a window of zeros, in a shared file where that is wanted and possible."""
        nbytes = spec.regions()[1]
        file = unshared = None
        if shared:
            try:
                file = SharedFile.create(spec.fit, nbytes)
            except OSError as error:  # no room or no such file system: all are served
                unshared = str(error)
        memory: Any = file.memory if file else _aligned_zeros(nbytes)
        window = cls(spec, memory, update=update, file=file)
        window.unshared = unshared
        window._identity[:16] = np.frombuffer(secrets.token_bytes(16), np.uint8)
        window._identity[16:48] = np.frombuffer(spec.identity(), np.uint8)
        window.words.store(Word.OPEN, 1)
        for rank in range(spec.n_ranks):
            window.words.rank_store(rank, Field.FREE, 1)
            if rank not in spec.active:  # nobody waits for it
                window.words.rank_store(rank, Field.ARRIVED, _NEVER_AWAITED)
                window.words.rank_store(rank, Field.DONE, _NEVER_AWAITED)
        return window

    @property
    def token(self) -> bytes:
        """16 random bytes that tell this window from all others."""
        return self._identity[:16].tobytes()

    def is_window(self, token: bytes) -> bool:
        """Whether this memory is the window that has `token` and this layout."""
        return self.token == token and self._identity[16:48].tobytes() == self.spec.identity()

    def slice(self, rank: int) -> tuple[int, int]:
        """The elements that `rank` reduces and updates on behalf of all."""
        if rank not in self.spec.active:
            return 0, 0
        n, width, place = self.spec.size, self.slice_width, self.place(rank)
        return min(n, place * width), min(n, (place + 1) * width)

    def place(self, rank: int) -> int:
        """Which of the slices a rank has."""
        active = self.spec.active
        return active.index(rank) if rank in active else -1

    @property
    def slice_width(self) -> int:
        """Elements of a slice; the last ones may have fewer."""
        return -(-self.spec.size // len(self.spec.active) // 32) * 32 or 32

    def progress(self, rank: int) -> tuple[int, ...]:
        """Counters of a rank; they change while it gets on."""
        return tuple(self.words.rank_load(rank, field) for field in _PROGRESS)

    def stop(self, reason: int) -> None:
        """End every wait. The first reason stays."""
        self.words.store_once(Word.STOP, reason)

    @property
    def stopped(self) -> int:
        """0, FINISHED or ABORTED."""
        return self.words.load(Word.STOP)

    def ready(self, wait: Wait) -> bool:
        """Whether a wait would end at once."""
        if isinstance(wait.of, Field):
            return self.words.ready(wait.of, wait.value)
        return self.words.word_ready(wait.of, wait.value)

    def wait(self, wait: Wait, seconds: float) -> int:
        """Wait without the interpreter: READY, STOPPED or LATE."""
        if isinstance(wait.of, Field):
            return self.words.wait(wait.of, wait.value, seconds)
        return self.words.word_wait(wait.of, wait.value, seconds)

    def close(self) -> None:
        """Stop whoever still uses the window and give its file back."""
        self.stop(ABORTED)
        if self.file is not None:
            self.file.close()


# Windows owned by this process: threads, Dask's in-process clusters, and replicas
# beside their shard reach them without a file.
_own_windows: weakref.WeakValueDictionary[bytes, Window] = weakref.WeakValueDictionary()


def announce(window: Window) -> None:
    """Let replicas of this process find a window by its token."""
    _own_windows[window.token] = window


def own_window(token: bytes) -> Window | None:
    """The window of this process that has a token."""
    return _own_windows.get(token)


def _aligned_zeros(nbytes: int) -> NDArray[np.uint8]:
    memory = np.zeros(nbytes + mmap.PAGESIZE, np.uint8)
    offset = -memory.ctypes.data % mmap.PAGESIZE
    return memory[offset : offset + nbytes]


class Watch:
    """Deadlines of one who waits on a window: each rank has its own.

    Parameters
    ----------
    window : Window
    timeout : float
        Seconds without progress of a rank after which waiting for it is an error.
    rank : int
        The rank that waits, or that is waited for on behalf of.
    alive : callable, optional
        Called once a second; raises if waiting makes no sense any more.
    ranks : sequence of int, optional
        The numbers that the window's ranks have in their group, where they are others.

    Attributes
    ----------
    activity : Activity or None
        The account that waits are entered in.
    """

    def __init__(
        self,
        window: Window,
        timeout: float,
        rank: int,
        alive: Callable[[], None] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._ranks = ranks or range(window.spec.n_ranks)
        self._window = window
        self._rank = rank
        self._timeout = timeout
        self.tick = min(_TICK, timeout / 4)
        self._alive = alive
        self.activity: Activity | None = None
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}

    def look(self, wait: Wait) -> None:
        """Raise if what is waited for will not come.

        Raises
        ------
        StoppedError, StalledError, ServerLostError
        """
        window = self._window
        if window.stopped:
            raise StoppedError("the fit was stopped")
        window.words.rank_add(self._rank, Field.WAITS, 1)
        if self._alive is not None:
            self._alive()
        if window.file is not None and window.file.owner_is_gone():
            raise ServerLostError(f"the worker that held shard {window.spec.shard} has died")
        now = time.monotonic()
        for rank in self._missing(wait):
            progress = window.progress(rank)
            seen = self._seen.get(rank)
            if seen is None or seen[0] != progress:
                self._seen[rank] = (progress, now)
            elif now - seen[1] > self._timeout:
                raise StalledError(
                    f"no progress for {self._timeout:g} s; "
                    "raise `timeout` if a step may take longer",
                    rank=self._ranks[rank],
                    step=progress[0] + 1,
                )

    def _missing(self, wait: Wait) -> list[int]:
        words = self._window.words
        # Who waits is not who is waited for.
        ranks = [rank for rank in range(self._window.spec.n_ranks) if rank != self._rank]
        if isinstance(wait.of, Field):
            return [r for r in ranks if words.rank_load(r, wait.of) < wait.value]
        # A window's word is moved on by whichever rank comes last.
        fewest = min((words.rank_load(r, Field.ENDED) for r in ranks), default=0)
        return [r for r in ranks if words.rank_load(r, Field.ENDED) == fewest]

    def begin(self) -> None:
        """Forget what was seen: a new wait starts now."""
        self._seen.clear()

    def go_on(self, field: int, word: int, value: int) -> None:
        """Go on with a wait that has begun without the interpreter, as `MappedEnd` does."""
        self.until(Wait(Word(word) if field < 0 else Field(field), value))

    def until(self, wait: Wait) -> None:
        """Block until the wait is over, looking around once a second."""
        if self._window.ready(wait):
            return
        began = time.monotonic_ns()
        try:
            self._wait(wait)
        finally:
            if self.activity is not None:
                self.activity.waited(time.monotonic_ns() - began)

    def _wait(self, wait: Wait) -> None:
        window = self._window
        result = window.wait(wait, self.tick)
        if result == READY:
            return
        self.begin()
        while result != READY:
            self.look(wait)
            result = window.wait(wait, self.tick)
            if result != LATE and result != READY:
                raise StoppedError("the fit was stopped")
