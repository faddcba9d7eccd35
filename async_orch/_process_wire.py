"""What the event loop and its worker processes say to each other, and how.

A channel is a pair of Unix sockets that keep message boundaries, so that a message is sent and received whole or not at
all. One that is larger than `INLINE_NBYTES` travels as a nameless file in memory whose descriptor is sent; so does
shared memory. At most one message waits in either direction, hence sending never has to wait for room.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

import msgspec

from async_orch._process_errors import Failure

__all__ = ["Answer", "Build", "Channel", "Closed", "Hello", "MainModule", "Ready", "Refused", "ToLoop", "ToWorker"]

INLINE_NBYTES = 32_768
"""Far below the smallest default of a socket's send buffer (net.core.wmem_default, 212,992 B on Linux)."""

_INLINE, _IN_FILE = b"\0", b"\1"
_MAX_DESCRIPTORS = 2


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages."""


class MainModule(Message, frozen=True, array_like=True):
    """How to import the module that the caller runs as ``__main__``: by name, by path, or why not at all.

    Paths and arguments are bytes, since they need not be text.
    """

    name: str | None = None
    path: bytes | None = None
    refusal: str | None = None


class Hello(Message, frozen=True, array_like=True, tag=True):
    """To a new worker: its programs, pickled; ``types`` are the names of their classes."""

    names: list[str]
    types: list[str]
    programs: list[bytes]
    main: MainModule
    argv: list[bytes]


class Build(Message, frozen=True, array_like=True, tag=True):
    """To a worker: build one step. ``staging`` is the buffer's index, -1 for none.

    With ``fresh`` its descriptor comes along, since the worker does not have this memory yet. ``nbytes`` is the size of
    the image, and ``capacity`` that of the memory.
    """

    program: int
    staging: int
    fresh: bool
    nbytes: int
    capacity: int
    payload: bytes


class Stop(Message, frozen=True, array_like=True, tag=True):
    """To a worker: nothing more will come."""


class Ready(Message, frozen=True, array_like=True, tag=True):
    """From a new worker: it has made its programs."""


class Refused(Message, frozen=True, array_like=True, tag=True):
    """From a new worker: it could not make a program."""

    program: str
    failure: Failure


class Answer(Message, frozen=True, array_like=True, tag=True):
    """From a worker: what ``build`` returned or raised, and when, in CLOCK_MONOTONIC nanoseconds.

    ``nbytes`` is None where it returned None, ``sm_nbytes`` where it returned no `Built`.
    """

    start_ns: int
    end_ns: int
    nbytes: int | None = None
    sm_nbytes: int | None = None
    failure: Failure | None = None


ToWorker = Hello | Build | Stop
ToLoop = Ready | Refused | Answer

MessageT = TypeVar("MessageT")


class Closed(Exception):
    """The other side has closed the channel, or its process has ended; ``unread`` if a message to it was not read."""

    def __init__(self, *, unread: bool = False) -> None:
        super().__init__()
        self.unread = unread


class Channel(Generic[MessageT]):
    """One end: sends any message, receives those of one kind."""

    __slots__ = ("_decoder", "_encoder", "_socket")

    def __init__(self, end: socket.socket, receives: Any) -> None:
        self._socket = end
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(receives)

    def fileno(self) -> int:
        """The socket's descriptor, -1 after `close`."""
        return self._socket.fileno()

    def send(self, message: Message, *descriptors: int) -> None:
        """Send a message, and descriptors with it. Raises `Closed`."""
        body = self._encoder.encode(message)
        try:
            if len(body) <= INLINE_NBYTES:
                self._send([_INLINE, body], descriptors)
                return
            file = os.memfd_create("async_orch.message", os.MFD_CLOEXEC)
            try:
                _write_all(file, body)
                self._send([_IN_FILE], [*descriptors, file])
            finally:
                os.close(file)
        except ConnectionError as exc:
            raise Closed from exc

    def _send(self, parts: Sequence[bytes], descriptors: Sequence[int]) -> None:
        if descriptors:
            socket.send_fds(self._socket, parts, list(descriptors))
        else:
            self._socket.sendmsg(parts)

    def receive(self) -> tuple[MessageT, list[int]]:
        """The next message and its descriptors, which the caller closes.

        Raises `Closed`, and `BlockingIOError` if the socket does not block and nothing has come.
        """
        try:
            data, descriptors, flags, _ = socket.recv_fds(
                self._socket, INLINE_NBYTES + 1, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError as exc:
            # A Unix socket is reset, and not just closed, if the other end had something that it did not read.
            raise Closed(unread=isinstance(exc, ConnectionResetError)) from exc
        with ExitStack() as undo:
            undo.callback(_close_all, descriptors)
            if not data:
                raise Closed
            if flags & socket.MSG_CTRUNC:
                raise OSError("a descriptor of the message could not be received: too many files are open")
            if data[:1] == _IN_FILE:
                with os.fdopen(descriptors.pop(), "rb") as file:
                    file.seek(0)  # the sender's position comes along
                    body = file.read()
            else:
                body = data[1:]
            message = self._decoder.decode(body)
            undo.pop_all()
        return message, descriptors

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._socket.close()


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _write_all(file: int, body: bytes) -> None:
    rest = memoryview(body)
    while rest:
        rest = rest[os.write(file, rest) :]
