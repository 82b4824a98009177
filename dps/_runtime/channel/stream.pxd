from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._runtime.shared.activity cimport Activity
from dps._runtime.channel.base cimport ErrorFeedback, ShardChannel
from dps._runtime.wire.message cimport Request
from dps._runtime.wire.wire cimport Wire


cdef class StreamChannel(ShardChannel):
    cdef Wire wire
    cdef readonly bint pending  # inside a message, or an answer has not been received
    cdef object raised
    cdef Activity activity
    cdef int shard
    cdef int64_t accounted  # when the rank last sent its account, in nanoseconds
    cdef Buffer came_keys
    cdef ErrorFeedback feedback

    cdef int send(self, const char* given) except -1 nogil
    cdef int _send_whole(self, const void** parts, const Py_ssize_t* sizes) except -1 nogil
    cdef int _account(self, Request* request, const void** parts, Py_ssize_t* sizes) noexcept nogil
    cdef int receive(self, char* taken) except -1 nogil
    cdef int _payload(self, char* taken) except -1 nogil
    cdef int _expect(self, Py_ssize_t nbytes) except -1 nogil
    cdef bint _is_narrow(self) noexcept nogil
