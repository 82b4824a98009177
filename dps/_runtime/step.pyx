"""A rank's steps over all of its shards: push, pull, mean and broadcast.

Owns the order in which a rank asks its shards: it begins at all of them, so that all messages are
on their way at once, and then takes what comes of it, shard by shard. Any mixture of channels will
do, mapped and far, for whole vectors or by keys. What a mode does otherwise is in synchronous.pyx,
allreduce.pyx and asynchronous.pyx.

Steps and collectives of ranks are numbered together (``sequence``), the same on all ranks where
these wait for each other.
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.checks cimport vector_of
from dps._kernels.rows cimport KeyedRows
from dps._kernels.table cimport dps_owner
from dps._kernels.typed_ops cimport typed_ops
from dps._runtime.shared.activity cimport COMPUTE, PUSH as PUSHING, Activity
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.channel.host_sum cimport HostReducer
from dps._runtime.channel.stream cimport StreamChannel
from dps._runtime.wire.message cimport (
    BAD_GRADIENT, BAD_UPDATE, BROADCAST, FULL, MEAN, NOTES, PULL, PULL_KEYS, PUSH, PUSH_KEYS, RAN,
    Request, STOPPED
)

#: Number of keys if these are ids.
cdef Py_ssize_t MANY = <Py_ssize_t> 1 << 62

#: Endings of a call, for the interpreter.
ENDINGS = {RAN: "ran", BAD_GRADIENT: "gradient", BAD_UPDATE: "update", STOPPED: "stopped"}


cdef class Step:
    """A rank's steps.

    channels: one a shard, in order.
    params: (size,) array, where the parameters are, or come to lie after each push.
    total: (size,) array, where a mean or a broadcast comes to lie.
    version: updates that the parameters have.
    activity: where waits, pushes and what they are stale by are counted; who calls `push` gives it
        the time up to the call, and from the last lap on.
    host: where ranks of a host sum first, so that one of them sends one message for all.
    """

    def __init__(
        self, int rank, channels, params, total, version, Activity activity, rates=None,
        HostReducer host=None,
    ):
        cdef int number
        free(self._channels)  # from an earlier call
        self.rank = rank
        self.n_shards = len(channels)
        self._channels = <void**> calloc(max(self.n_shards, 1), sizeof(void*))
        if self._channels is NULL:
            raise MemoryError
        self._refs = []
        for number, channel in enumerate(channels):
            self._channels[number] = <void*> (<ShardChannel?> channel)
            self._refs.append(channel)
        dtype = params.dtype.name
        self.size = params.shape[0]
        self.numbers = typed_ops(dtype == "float32")
        for name, array in (("params", params), ("total", total)):
            vector_of(name, array, dtype, self.size)
        self.params, self.total = self.keep(params), self.keep(total)
        self.version = version
        self.activity = activity
        self.host = host
        self.rates = rates
        if rates is not None:
            self.key_map.width, self.key_map.table_rows = rates.width, rates.table_rows
            starts = np.array([channel.first_key for channel in channels], np.int64)
            self.key_map.starts = <const int64_t*> self.keep(starts)
            n_keys = MANY if self.key_map.table_rows else self.size // self.key_map.width
            self.keys, self._at_keys = KeyedRows(n_keys), Buffer()

    def __dealloc__(self):
        free(self._channels)

    cdef char* keep(self, array) except? NULL:
        self._refs.append(array)
        return <char*> <uintptr_t> array.ctypes.data

    @property
    def single(self):
        """True if vectors are float32."""
        return self.numbers.single

    def staleness(self):
        """Sum and largest staleness of pushes since the last call."""
        return 0.0, 0.0

    def plan_steps(self, steps):
        """Begin an epoch with a number of steps."""
        self.way.last = self.sequence + steps

    def dropped_rows(self):
        """Rows that did not count, and rows that came late, since the last call."""
        return 0, 0

    def begin_epoch(self, epoch):
        """Begin an epoch of the fit for steps by keys."""
        self.way.epoch = epoch

    def heartbeat(self):
        """Send a heartbeat to all shards, and on the rank's host, without waiting."""
        cdef int number
        with nogil:
            for number in range(self.n_shards):
                (<ShardChannel> self._channels[number]).heartbeat()
            if self.host is not None:
                self.host.heartbeat()

    def finish_steps(self):
        """End the steps of this epoch; return the clock at its end, 0 if ranks have none."""
        return 0

    @property
    def needs_pull(self):
        """True if parameters must be pulled before an epoch's first step."""
        return False

    def clock_distance(self):
        """Largest lead of a step at its start since the last call; NaN if no rank counts."""
        return float("nan")

    def push_gradient(self, grad, int64_t rows, double rate):
        """Push a gradient sum; return how it ended."""
        cdef const char* given = self._vector(grad)
        cdef int status
        with nogil:
            status = self.push(given, rows, rate)
        return ENDINGS[status]

    @property
    def busy(self):
        """True while a push is in progress."""
        return False

    def wait_for_answers(self):
        """Collect the answers of a push in progress."""
        cdef int status
        with nogil:
            status = self.collect()
        return ENDINGS[status]

    def pull(self):
        """Read the current parameters."""
        cdef int status
        with nogil:
            status = self._ask(PULL, self.params)
        return ENDINGS[status]

    def pull_touched(self):
        """Read the parameters at `keys` into `touched`."""
        cdef int status
        with nogil:
            status = self.pull_keys()
        return ENDINGS[status]

    @property
    def touched(self):
        """A copy of the parameters from the last pull by keys."""
        cdef Py_ssize_t n = self.keys.keys.count * self.key_map.width * self.numbers.itemsize
        return np.frombuffer(self.at_keys[:n], "float32" if self.numbers.single else "float64")

    def reduce_mean(self, values, int64_t rows, notes):
        """Compute the mean over all ranks; return the ending and the sums of the notes."""
        cdef const char* given = self._vector(values)
        cdef double sent[NOTES]
        cdef int status, i
        _fill(sent, notes)
        with nogil:
            status = self.mean(given, rows, sent)
        return ENDINGS[status], np.array([self.notes[i] for i in range(len(notes))])

    def broadcast_values(self, values, notes):
        """Broadcast rank 0's vector; return the ending and its notes."""
        cdef const char* given = self._vector(values) if self.rank == 0 else NULL
        cdef double sent[NOTES]
        cdef int status, i
        _fill(sent, notes)
        with nogil:
            status = self.broadcast(given, sent)
        return ENDINGS[status], np.array([self.notes[i] for i in range(len(notes))])

    cdef const char* _vector(self, values) except NULL:
        return vector_of(
            "values", values, "float32" if self.numbers.single else "float64", self.size
        )

    cdef Request* request(self, int number, int64_t op) noexcept nogil:
        """Return the request to a shard, to be filled in."""
        cdef Request* request = &(<ShardChannel> self._channels[number]).request
        request.op = op
        request.sequence = self.sequence
        request.step = self.version + self.sequence
        request.epoch = self.way.epoch
        request.n_keys = -1
        request.coding = self.coding if op == PUSH else FULL
        request.last = self.sequence == self.way.last
        if op == PUSH_KEYS and (self.host is not None or self.keys.keys.count == 0):
            # Other keys than the last ones.
            request.n_keys = (<ShardChannel> self._channels[number]).picks.n
        return request

    cdef int _exchange(
        self, int64_t op, const char* given, int64_t rows, double rate, char* taken
    ) except -1 nogil:
        """Send something to all shards, and take their answers."""
        if self.host is None:
            return self._exchange_with_all(op, given, rows, rate, taken)
        return self._exchange_by_host(op, given, rows, rate, taken)

    cdef int _exchange_by_host(
        self, int64_t op, const char* given, int64_t rows, double rate, char* taken
    ) except -1 nogil:
        """Do so for all ranks of this host at once: the leader asks, and all get the answer."""
        cdef Request* request = &(<ShardChannel> self._channels[0]).request
        cdef double* notes = (<ShardChannel> self._channels[0]).answer.notes
        cdef int number, i
        cdef int status
        if op == PUSH_KEYS:
            self.host.pick_all(self.keys.keys.list, self.keys.keys.count)
        status = self.host.sum_up(op, given, rows, request.notes, self.sequence)
        if status != RAN:
            return status
        if self.host.leads:
            if op == PUSH_KEYS:
                given = self.host.total
                self._split(self.host.key_slots.total_keys, self.host.mean.counts[0])
            elif op != BROADCAST:
                given = self.host.total
                for i in range(NOTES):
                    request.notes[i] = self.host.answer.notes[i]
            rows = self.host.slots.all_rows
            status = self._exchange_with_all(op, given, rows, rate, self.host.params)
            if op == PUSH_KEYS:
                for number in range(self.n_shards):
                    self.host.take_means(number, <ShardChannel> self._channels[number])
            self.host.publish(status, notes)
        else:
            status = self.host.await_answer(notes)
            # The rank sends nothing else to the shards in this step.
            for number in range(self.n_shards):
                if (<ShardChannel> self._channels[number]).far:
                    (<StreamChannel> self._channels[number]).heartbeat()
        if status == RAN and op == PUSH_KEYS:
            self.host.mean.counts[0] = self.host.key_slots.total_counts[0]
        elif status == RAN:
            self.host._place(self.host.params, taken)
        return status

    cdef int _exchange_with_all(
        self, int64_t op, const char* given, int64_t rows, double rate, char* taken
    ) except -1 nogil:
        """Begin at all shards, then finish at each."""
        cdef int64_t waited = self.activity.waited_so_far(), afar = 0
        cdef Request* request
        cdef int number, status
        for number in range(self.n_shards):
            request = self.request(number, op)
            request.rows = rows
            request.rate = rate
            status = (<ShardChannel> self._channels[number]).begin(given)
            if status != RAN:
                return status
        for number in range(self.n_shards):
            status = (<ShardChannel> self._channels[number]).finish(taken)
            if status != RAN:
                return status
            if (<ShardChannel> self._channels[number]).far:
                afar = max(afar, (<ShardChannel> self._channels[number]).answer.waited)
                self.activity.spend(PUSHING, -1)
        self.activity.waited_afar(afar - (self.activity.waited_so_far() - waited))
        return RAN

    cdef int _ask(self, int64_t op, char* taken) except -1 nogil:
        """Send a request that changes nothing to all shards, and take their answers."""
        cdef int number, status = self.collect()
        if status != RAN:
            return status
        for number in range(self.n_shards):
            self.request(number, op)
            if op == PULL_KEYS:
                (<ShardChannel> self._channels[number]).request.n_keys = (
                    (<ShardChannel> self._channels[number]).picks.n
                )
            status = (<ShardChannel> self._channels[number]).begin(NULL)
            if status != RAN:
                return status
        for number in range(self.n_shards):
            status = (<ShardChannel> self._channels[number]).finish(taken)
            if status != RAN:
                return status
        return RAN

    cdef int collect(self) except -1 nogil:
        """Wait for the answers of a push in progress."""
        return RAN

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        """Push a gradient sum over some rows; `params` then has the next parameters."""
        cdef int64_t op = PUSH if self.keys is None else PUSH_KEYS
        cdef int status
        self.sequence += 1
        if self.keys is not None and self.keys.keys.count == 0:
            self._split(self.keys.keys.list, 0)  # the last pull was for other rows
        if self.host is None:
            status = self._exchange_with_all(op, grad, rows, rate, self._taken())
        else:
            status = self._exchange_by_host(op, grad, rows, rate, self._taken())
        return self.pushed(rate) if status == RAN else status

    cdef char* _taken(self) noexcept nogil:
        """Return the place for the answer to a push."""
        return self.params

    cdef int pushed(self, double rate) except -1 nogil:
        """Use the answer to a push."""
        return RAN

    cdef int pull_keys(self) except -1 nogil:
        """Read the parameters that the batch touches into `at_keys`."""
        self._make_room()
        self._split(self.keys.keys.list, self.keys.keys.count)
        return self._ask(PULL_KEYS, self.at_keys)

    cdef int _make_room(self) except -1 nogil:
        cdef Py_ssize_t each = self.key_map.width * self.numbers.itemsize
        self.at_keys = self._at_keys.fit(self.keys.keys.count * each)
        return 0

    cdef int _split(self, int64_t* keys, Py_ssize_t n) except -1 nogil:
        """Split n keys over the shards."""
        cdef Picks* picks
        cdef Py_ssize_t i, low, high, middle
        cdef int64_t key
        cdef int number
        if self.n_shards == 1:
            (<ShardChannel> self._channels[0]).pick_all(keys, n)
            return 0
        for number in range(self.n_shards):
            (<ShardChannel> self._channels[number]).pick_none(n)
        for i in range(n):
            key = keys[i] if keys[i] >= 0 else dps_owner(-1 - keys[i], self.key_map.table_rows)
            low, high = 0, self.n_shards - 1
            while low < high:  # finds the last shard whose first key is not above the key
                middle = (low + high + 1) // 2
                if self.key_map.starts[middle] <= key:
                    low = middle
                else:
                    high = middle - 1
            picks = &(<ShardChannel> self._channels[low]).picks
            picks.keys[picks.n] = keys[i]
            if keys[i] >= 0:
                picks.keys[picks.n] = <int64_t> (key - self.key_map.starts[low])
            picks.at[picks.n] = i
            picks.n += 1
        return 0

    cdef int mean(self, const char* given, int64_t rows, const double* notes) except -1 nogil:
        """Compute the sum of all ranks' vectors over the sum of their rows, in `total`."""
        return self._collective(MEAN, given, rows, notes)

    cdef int broadcast(self, const char* given, const double* notes) except -1 nogil:
        """Broadcast rank 0's vector and notes, in `total`."""
        return self._collective(BROADCAST, given, 0, notes)

    cdef int _collective(
        self, int64_t op, const char* given, int64_t rows, const double* notes
    ) except -1 nogil:
        cdef int status = self.collect(), i
        if status != RAN:
            return status
        self.sequence += 1
        for i in range(NOTES):
            (<ShardChannel> self._channels[0]).request.notes[i] = notes[i]
        self.activity.spend(COMPUTE, -1)
        status = self._exchange(op, given, rows, 0, self.total)
        if status == RAN:
            for i in range(NOTES):
                self.notes[i] = (<ShardChannel> self._channels[0]).answer.notes[i]
        return status


cdef class SoloStep(Step):
    """The collectives of a rank that is alone and needs no shard: the same bits, no message."""

    def __init__(self, params, total, version, Activity activity):
        Step.__init__(self, 0, [], params, total, version, activity)

    cdef int _collective(
        self, int64_t op, const char* given, int64_t rows, const double* notes
    ) except -1 nogil:
        cdef int i
        self.sequence += 1
        self.activity.spend(COMPUTE, -1)
        if not self.numbers.is_finite(given, self.size):
            return BAD_GRADIENT if op == MEAN else BAD_UPDATE
        if op == BROADCAST:
            memcpy(self.total, given, self.size * self.numbers.itemsize)
        else:
            self.numbers.sum_slots(given, 0, &rows, 1, self.total, self.size, <double> rows)
        for i in range(NOTES):
            self.notes[i] = notes[i]
        return RAN


cdef int _fill(double* sent, notes) except -1:
    cdef int i
    if len(notes) > NOTES:
        raise ValueError(f"there are {NOTES} notes at most, got {len(notes)}")
    for i in range(NOTES):
        sent[i] = notes[i] if i < len(notes) else 0
    return 0
