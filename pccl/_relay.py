"""A relay: joins two TCP connections that name the same link, and copies bytes between them without knowing what they are.

csrc/net/relay.h has the three messages with which a connection begins. Every connection that has not named a link ends after
HELLO_SECONDS, one that waits for its other end after WAIT_SECONDS. The bytes on their way are in pipes of the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import logging
import os
import resource
import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

GREETING = b"pccl relay 1 %s\n"
HELLO_BYTES = 140
HELLO_SECONDS = 5.0
WAIT_SECONDS = 30.0
TURN_SECONDS = 0.5
PIPE_BYTES = 256 * 1024
"""That are on their way at most, in each direction of a link."""
UNKNOWN_MOST = 256
"""Connections that have not named a link; the oldest of the address that has most of them goes."""
PAUSE_SECONDS = 0.5
"""For how long it accepts nobody when the system has no descriptor or memory for a connection."""
LINK_DESCRIPTORS = 6
"""Two connections, and a pipe for each direction."""
OTHER_DESCRIPTORS = UNKNOWN_MOST + 64

_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger("pccl")


def key_of(secret: bytes) -> bytes:
    """Returns the key by which members of a run prove that they have its secret."""
    return hashlib.sha256(b"pccl relay key" + secret).digest()


@dataclass(eq=False)
class _End:
    """One connection. `reader` and `writer`: the pipe with `pending` bytes that came from it."""

    connection: socket.socket
    address: bytes
    nonce: bytes
    since: float
    hello: bytes = b""
    name: tuple[bytes, bytes, bytes] | None = None
    itself: bytes = b""
    other: _End | None = None
    reader: int = -1
    writer: int = -1
    pending: int = 0
    ended: bool = False
    events: int = field(default=selectors.EVENT_READ)


class Relay:
    """Listens at a host and port; 0 is any port. `keys`: those of the runs that may use it; None: everybody may.

    `links`: how many it joins at most; fewer, with a warning, if the hard limit of open files forbids it. The soft limit of this
    process is raised to what they need. OSError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, keys: Sequence[bytes] | None, *, links: int = 1024) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._keys, self._links = keys, make_room(links)
        self._listener = socket.create_server((host, port), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._paused_until = 0.0
        self._said_short = False
        self._unknown: dict[_End, None] = {}
        self._waiting: dict[tuple[bytes, bytes, bytes], _End] = {}
        self._joined: dict[_End, None] = {}
        self.bytes = 0
        """That were copied so far."""

    def run(self) -> None:
        """Relays until an exception, such as KeyboardInterrupt, ends it. Closes everything then."""
        try:
            while True:
                self.turn(TURN_SECONDS)
        finally:
            self.close()

    def turn(self, seconds: float) -> None:
        """Waits for something to do for at most so long, and does it."""
        for key, events in self._selector.select(seconds):
            if key.data is None:
                self._accept()
            elif key.data.connection.fileno() >= 0:
                self._handle(key.data, events)
        now = time.monotonic()
        if 0 < self._paused_until <= now:
            self._paused_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        for end in [end for end in self._unknown if now > end.since + HELLO_SECONDS]:
            self._close(end)
        for end in [end for end in self._waiting.values() if now > end.since + WAIT_SECONDS]:
            self._close(end)

    @property
    def links(self) -> int:
        """How many links it relays now."""
        return len(self._joined) // 2

    def close(self) -> None:
        """Closes all connections, and listens no longer."""
        for end in [*self._unknown, *self._waiting.values(), *self._joined]:
            self._close(end)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, (host, *_) = self._listener.accept()
        except OSError as error:
            if error.errno in _SHORT:
                self._pause(error)
            return
        if len(self._unknown) >= UNKNOWN_MOST:
            self._close(self._surplus())
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        end = _End(connection, network_of(host), secrets.token_hex(16).encode(), time.monotonic())
        self._unknown[end] = None
        self._selector.register(connection, end.events, end)
        with contextlib.suppress(OSError):
            connection.send(GREETING % end.nonce)

    def _surplus(self) -> _End:
        """The oldest unknown connection from the address that has most of them."""
        counts = Counter(end.address for end in self._unknown)
        most = max(counts.values())
        return next(end for end in self._unknown if counts[end.address] == most)

    def _pause(self, error: OSError) -> None:
        """Accepts nobody for a while: a listener that cannot accept stays readable."""
        if not self._said_short:
            _log.warning("relay: no room for a connection beside %d links: %s; it tries again", self.links, error.strerror)
        self._said_short = True
        if self._paused_until == 0:
            self._selector.unregister(self._listener)
        self._paused_until = time.monotonic() + PAUSE_SECONDS

    def _handle(self, end: _End, events: int) -> None:
        try:
            if end.other is not None:
                if events & selectors.EVENT_READ:
                    self._take(end)
                if events & selectors.EVENT_WRITE:
                    self._give(end.other)
                self._watch(end)
                self._watch(end.other)
            elif end.name is not None:
                self._close(end)  # it has left, or speaks too soon
            else:
                self._greet(end)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _SHORT:
                self._pause(error)
            self._close(end)

    def _greet(self, end: _End) -> None:
        got = end.connection.recv(HELLO_BYTES - len(end.hello))
        end.hello += got
        if not got or (len(end.hello) == HELLO_BYTES and not self._take_hello(end)):
            self._close(end)

    def _take_hello(self, end: _End) -> bool:
        """False: it may not use this relay, or is no peer."""
        words = end.hello[:-1].split(b" ")
        if len(words) != 4 or [len(word) for word in words] != [32, 32, 8, 64] or words[0] == words[1]:
            return False
        text = b"%s %s " % (end.nonce, b" ".join(words[:3]))
        proofs = [hashlib.sha256(text + key).hexdigest().encode() for key in self._keys or ()]
        if self._keys is not None and not any(hmac.compare_digest(proof, words[3]) for proof in proofs):
            return False
        low, high = sorted(words[:2])
        end.name, end.itself, end.since = (low, high, words[2]), words[0], time.monotonic()
        del self._unknown[end]
        before = self._waiting.get(end.name)
        if before is not None and before.itself != end.itself:
            self._join(before, end)
            return True
        if before is not None:
            self._close(before)
        self._waiting[end.name] = end
        return self.links + len(self._waiting) <= self._links

    def _join(self, one: _End, two: _End) -> None:
        assert one.name is not None
        del self._waiting[one.name]
        one.other, two.other = two, one
        for end in (one, two):
            self._joined[end] = None
        for end in (one, two):
            end.reader, end.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            _grow(end.writer)
        for end in (one, two):
            end.connection.send(b"+")

    def _take(self, end: _End) -> None:
        """Takes what has come from one end, and gives what the other one takes."""
        with contextlib.suppress(BlockingIOError):  # its pipe is full, or nothing is left
            while not end.ended:
                count = os.splice(end.connection.fileno(), end.writer, PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)
                end.ended = count == 0
                end.pending += count
                if self._give(end):
                    break

    def _give(self, end: _End) -> bool:
        """Gives the other end what came from this one. True: it takes no more now."""
        assert end.other is not None
        with contextlib.suppress(BlockingIOError):
            while end.pending > 0:
                count = os.splice(end.reader, end.other.connection.fileno(), end.pending, flags=os.SPLICE_F_NONBLOCK)
                end.pending -= count
                self.bytes += count
        if end.ended and end.pending == 0:
            end.other.connection.shutdown(socket.SHUT_WR)
            if end.other.ended and end.other.pending == 0:
                raise ConnectionResetError  # both have ended
        return end.pending > 0

    def _watch(self, end: _End) -> None:
        if end.other is None or end.connection.fileno() < 0:
            return
        reads = not end.ended and end.pending == 0
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if end.other.pending > 0 else 0)
        if events == end.events:
            return
        if end.events == 0:
            self._selector.register(end.connection, events, end)
        elif events == 0:
            self._selector.unregister(end.connection)
        else:
            self._selector.modify(end.connection, events, end)
        end.events = events

    def _close(self, end: _End) -> None:
        for one in (end, end.other):
            if one is None or one.connection.fileno() < 0:
                continue
            self._unknown.pop(one, None)
            self._joined.pop(one, None)
            if one.name is not None and self._waiting.get(one.name) is one:
                del self._waiting[one.name]
            if one.events:
                self._selector.unregister(one.connection)
            one.connection.close()
            for opened in (one.reader, one.writer):
                if opened >= 0:
                    os.close(opened)


def make_room(links: int) -> int:
    """Raises the soft limit of open files to what so many links need. Returns how many the hard limit permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = links * LINK_DESCRIPTORS + OTHER_DESCRIPTORS
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit == needed:
        return links
    fewer = max(1, (limit - OTHER_DESCRIPTORS) // LINK_DESCRIPTORS)
    _log.warning(
        "relay: it joins %d links, not %d, for which it needs %d open files; raise the hard limit (%d; ulimit -Hn)",
        fewer,
        links,
        needed,
        hard,
    )
    return fewer


def network_of(host: str) -> bytes:
    """Returns what stands for a client: its IPv4 address, or the first 64 bits of its IPv6 address."""
    if ":" not in host:
        return socket.inet_aton(host)
    address = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return address[12:] if address[:12] == b"\0" * 10 + b"\xff\xff" else address[:8]


def _grow(pipe: int) -> None:
    import fcntl

    with contextlib.suppress(OSError):  # beyond the limit of this user
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
