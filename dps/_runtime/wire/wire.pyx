"""Bytes between a rank and a shard: a native socket, or any object in Python.

One thread uses a wire at a time. Another thread may shut its socket down, which ends the first
one's wait.

A waiting thread calls ``look()`` about once a second, which raises if waiting is pointless.
``lost(what)`` makes the exception for a failed connection. A wire that has raised is unusable,
because the start of the next message is unknown.
"""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import contextlib
import os
import socket as sockets
import struct
import threading

cdef extern from "sys/uio.h" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void* buffer, size_t n, int flags)

cdef extern from *:
    """
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #ifdef MSG_NOSIGNAL
    #define DPS_NO_SIGNAL MSG_NOSIGNAL
    #else
    #define DPS_NO_SIGNAL 0
    #endif
    static ssize_t dps_sendmsg(int fd, struct iovec *parts, int n) {
        struct msghdr message;
        memset(&message, 0, sizeof(message));
        message.msg_iov = parts;
        message.msg_iovlen = n;
        return sendmsg(fd, &message, DPS_NO_SIGNAL);
    }
    """
    ssize_t dps_sendmsg(int fd, iovec* parts, int n) nogil

cdef enum:
    ROOM = 1 << 16  # bytes that are received ahead


cdef class Wire:
    """Sends and receives; ``look`` is called during long waits."""

    cdef int send(self, const void** parts, const Py_ssize_t* sizes, int n) except -1 nogil:
        """Send up to PARTS pieces of memory as one run of bytes."""
        return 0

    cdef int flush(self) except -1 nogil:
        """Send what was collected, also if no answer is expected."""
        return 0

    cdef bint receive(self, void* place, Py_ssize_t n) except -1 nogil:
        """Receive n bytes; False if the other side has closed before the first of them."""
        return False

    def receive_bytes(self, Py_ssize_t n):
        """Receive n bytes in Python."""
        cdef bytearray data = bytearray(n)
        cdef unsigned char[::1] view
        cdef bint got
        if n == 0:
            return data
        view = data
        with nogil:
            got = self.receive(&view[0], n)
        if not got:
            raise self.lost("the other side has closed the connection")
        return data


cdef class SocketWire(Wire):
    """A connected TCP socket for native use.

    socket: it is owned from now on.
    ahead: what has been received already.
    tick: seconds between calls of `look`.
    """

    def __cinit__(self, *args):
        self.buffer = NULL

    def __init__(self, socket, bytes ahead, look, lost, double tick):
        if len(ahead) > ROOM:
            raise ValueError(f"{len(ahead)} bytes came ahead, expected at most {ROOM}")
        self.look, self.lost = look, lost
        self.socket, self.closing = socket, threading.Lock()
        socket.setblocking(True)
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        waits = struct.pack("@ll", int(tick), int(tick % 1 * 1e6))
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVTIMEO, waits)
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDTIMEO, waits)
        self.fd = socket.fileno()
        self.buffer = <char*> malloc(ROOM)
        if self.buffer is NULL:
            raise MemoryError
        memcpy(self.buffer, <const char*> ahead, len(ahead))
        self.last = len(ahead)

    def __dealloc__(self):
        free(self.buffer)

    def close(self):
        """Close the socket, while no other thread uses it."""
        self.fd = -1
        with self.closing:
            self.socket.close()

    def shut(self):
        """End a wait of another thread."""
        with self.closing, contextlib.suppress(OSError):  # the other side was faster
            self.socket.shutdown(sockets.SHUT_RDWR)

    cdef int send(self, const void** parts, const Py_ssize_t* sizes, int n) except -1 nogil:
        cdef iovec pieces[PARTS]
        cdef int first = 0, i
        cdef ssize_t sent
        for i in range(n):
            pieces[i].iov_base = <void*> parts[i]
            pieces[i].iov_len = sizes[i]
        while first < n:
            if pieces[first].iov_len == 0:
                first += 1
                continue
            sent = dps_sendmsg(self.fd, pieces + first, n - first)
            if sent < 0:
                self._late()
                continue
            while first < n and sent >= <ssize_t> pieces[first].iov_len:
                sent -= pieces[first].iov_len
                first += 1
            if sent:
                pieces[first].iov_base = <char*> pieces[first].iov_base + sent
                pieces[first].iov_len -= sent
        return 0

    cdef bint receive(self, void* place, Py_ssize_t n) except -1 nogil:
        cdef char* out = <char*> place
        cdef Py_ssize_t have, came = 0
        cdef ssize_t got
        while True:
            have = min(n - came, self.last - self.first)
            memcpy(out + came, self.buffer + self.first, have)
            self.first += have
            came += have
            if came == n:
                return True
            # The buffer is empty. Long values are received in place.
            self.first = self.last = 0
            if n - came >= ROOM:
                got = recv(self.fd, out + came, n - came, 0)
                if got > 0:
                    came += got
            else:
                got = recv(self.fd, self.buffer, ROOM, 0)
                if got > 0:
                    self.last = got
            if got == 0:
                if came == 0:
                    return False
                with gil:
                    raise self.lost("the connection ended inside a message")
            if got < 0:
                self._late()

    cdef int _late(self) except -1 nogil:
        """Handle a failed call, which may have timed out."""
        cdef int error = errno
        if error == EINTR:
            return 0
        with gil:
            if error == EAGAIN:
                self.look()
                return 0
            raise self.lost(os.strerror(error))


cdef class ObjectWire(Wire):
    """An object that sends and receives, such as a TLS socket.

    over: ``over.send(list of memoryview)`` sends all of them; where it collects what belongs
        together, ``over.flush(look)`` sends that. ``over.receive(memoryview)`` returns how many
        bytes it has put there, 0 at the end, and raises TimeoutError once a tick.
    """

    def __init__(self, over, look, lost):
        self.over, self.collects = over, hasattr(over, "flush")
        self.look, self.lost = look, lost

    def close(self):
        """Close the object."""
        self.over.close()

    def shut(self):
        """End a wait of another thread."""
        self.over.shut()

    cdef int send(self, const void** parts, const Py_ssize_t* sizes, int n) except -1 nogil:
        cdef int i
        with gil:
            pieces = []
            for i in range(n):
                if sizes[i]:
                    pieces.append(memoryview(<char[:sizes[i]]> <char*> parts[i]).cast("B"))
            try:
                self.over.send(pieces, self.look)
            except OSError as error:
                raise self.lost(str(error)) from error
        return 0

    cdef int flush(self) except -1 nogil:
        if self.collects:
            with gil:
                try:
                    self.over.flush(self.look)
                except OSError as error:
                    raise self.lost(str(error)) from error
        return 0

    cdef bint receive(self, void* place, Py_ssize_t n) except -1 nogil:
        cdef Py_ssize_t came = 0
        if n == 0:
            return True
        with gil:
            into = memoryview(<char[:n]> <char*> place).cast("B")
            while came < n:
                try:
                    got = self.over.receive(into[came:])
                except TimeoutError:
                    self.look()
                    continue
                except OSError as error:
                    raise self.lost(str(error)) from error
                if got == 0:
                    if came == 0:
                        return False
                    raise self.lost("the connection ended inside a message")
                came += got
        return True
