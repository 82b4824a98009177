import numpy as np
from numpy.typing import NDArray

PORTABLE: bool
LINE_BYTES: int
READY: int
STOPPED: int
LATE: int
S_VERSION: int
S_SNAPSHOT_0: int
S_SNAPSHOT_1: int
S_SNAPSHOT_2: int
S_SNAPSHOT_3: int
S_WRITES: int
S_READS: int
S_CLOSED: int
W_STOP: int
W_OPEN: int
W_CLOSED: int
W_REPORTED_EVEN: int
W_REPORTED_ODD: int
W_ANSWERED: int
W_TICKETS: int
W_TURN: int
W_STEP: int
W_TAKEN: int
W_INTERIM: int
R_CLAIM: int
R_ARRIVED: int
R_DONE: int
R_REDUCED: int
R_FREE: int
R_ENDED: int
R_BEAT: int
R_ROWS: int
R_WAITS: int
R_LEASE: int
R_RING: int
R_CLOCK: int
R_GIVEN: int
R_TICKET: int
R_LATE: int
R_LATE_ROWS: int

class Header:
    """The atomic words of a window.

    `memory` is int64; it holds a bell, `n_global` words and `n_fields` words for
    each of `n_ranks` ranks, each on a line of 128 bytes. `stop` is the number of
    the word that ends every wait when it is not zero.
    """

    n_ranks: int
    n_global: int
    n_fields: int

    def __new__(
        cls, memory: NDArray[np.int64], n_ranks: int, n_global: int, n_fields: int, stop: int
    ) -> Header: ...
    @staticmethod
    def nbytes(n_ranks: int, n_global: int, n_fields: int) -> int: ...
    def want_core(self) -> None:
        """Say that a thread takes part that has no core of its own: others spin less."""
    def load(self, word: int) -> int: ...
    def store(self, word: int, value: int) -> None: ...
    def store_once(self, word: int, value: int) -> bool:
        """Set a word if it is zero; whether it was."""
    def add(self, word: int, value: int) -> int:
        """Add to a word; the new value."""
    def rank_load(self, rank: int, field: int) -> int: ...
    def rank_store(self, rank: int, field: int, value: int) -> None: ...
    def rank_add(self, rank: int, field: int, value: int) -> int:
        """Add to a rank's word without ringing; the new value."""
    def rank_claim(self, rank: int, field: int, value: int) -> bool:
        """Set a rank's word if it is zero; whether it was."""
    def ready(self, field: int, value: int) -> bool:
        """Whether the field of every rank is at least `value`."""
    def word_ready(self, word: int, value: int) -> bool: ...
    def wait(self, field: int, value: int, seconds: float) -> int:
        """Wait until the field of every rank is at least `value`: READY, STOPPED or LATE."""
    def word_wait(self, word: int, value: int, seconds: float) -> int:
        """Wait until a word is at least `value`: READY, STOPPED or LATE."""
