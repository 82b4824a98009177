"""Messages between a shard and its ranks or callers: one request, and one answer.

This module has the caller's side.
"""
from libc.stdint cimport int64_t
from libc.string cimport memset

from dps._kernels.checks cimport vector_of
from dps._runtime.wire.wire cimport Wire

import os


cdef class Caller:
    """A caller's side of its wire to one shard; one request at a time.

    before: a wire whose last request is sent `again` on this one.
    broken: whether a request has been sent without receiving its answer, so that the wire is
        unusable.
    """

    def __init__(self, Wire wire, Caller before=None):
        self.wire = wire
        self.broken = False
        self.name, self.number = int.from_bytes(os.urandom(7)), 0
        if before is not None:
            self.name, self.number = before.name, before.number

    cdef int begin(
        self, const Request* request, const void* keys, const void* values
    ) except -1 nogil:
        cdef const void* parts[3]
        cdef Py_ssize_t sizes[3]
        parts[0], parts[1], parts[2] = request, keys, values
        sizes[0], sizes[1] = sizeof(Request), 0
        if keys is not NULL:
            sizes[1] = request.n_keys * sizeof(int64_t)
        sizes[2] = request.nbytes - sizes[1]
        self.broken = True  # until the answer has arrived
        self.wire.send(parts, sizes, 3)
        return 0

    cdef int hear_status(self) except -1 nogil:
        if not self.wire.receive(&self.answer, sizeof(Answer)):
            with gil:
                raise self.wire.lost("it has been released")
        return 0

    def ask(
        self, int64_t op, int64_t part, int64_t start, keys, values, double weight, back,
        bint again=False
    ):
        """Send a request; call `hear` next, with `back` if elements are to be returned."""
        cdef int64_t n = len(keys) if start < 0 else (values if back is None else back).size
        cdef Request request
        cdef const void* chosen = NULL
        cdef const void* given = NULL
        memset(&request, 0, sizeof(Request))
        request.op, request.part, request.start, request.n_keys = op, part, start, n
        request.back, request.weight = back is not None, weight
        self.number += not again
        request.caller, request.number, request.again = self.name, self.number, again
        request.entry = -1
        if start < 0:
            chosen = vector_of("keys", keys, "int64", n)
            request.nbytes = n * sizeof(int64_t)
        if values is not None:
            given = vector_of("values", values, values.dtype.name, values.size)
            request.nbytes += values.nbytes
        with nogil:
            self.begin(&request, chosen, given)

    def hear(self, out):
        """Wait for the answer: `Ending`, number of writes, and a pickled exception."""
        cdef void* place = NULL
        cdef Py_ssize_t room = 0
        cdef bint came = True
        result = None
        if out is not None:
            place = vector_of("out", out, out.dtype.name, out.size)
            room = out.nbytes
        with nogil:
            self.hear_status()
        if self.answer.status == RAISED:
            result = bytes(self.wire.receive_bytes(self.answer.nbytes))
        elif self.answer.nbytes != (room if self.answer.status == RAN else 0):
            raise self.wire.lost("its answer is none")
        elif self.answer.nbytes:
            with nogil:
                came = self.wire.receive(place, room)
        if not came:
            raise self.wire.lost("it has been released")
        self.broken = False
        return self.answer.status, self.answer.version, result

    def call(self, bytes message):
        """Have a message answered in Python; return `Ending` and bytes."""
        cdef Request request
        cdef const char* given = message
        memset(&request, 0, sizeof(Request))
        request.op, request.nbytes = CALL, len(message)
        with nogil:
            self.begin(&request, NULL, given)
            self.hear_status()
        result = self.wire.receive_bytes(self.answer.nbytes)
        self.broken = False
        return self.answer.status, result

    def close(self):
        """Close the wire."""
        self.broken = True
        self.wire.close()
