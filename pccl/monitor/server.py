"""The page of a run: static files, events and metrics over HTTP, for whoever has the token."""

from __future__ import annotations

import contextlib
import hmac
import io
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pccl._host.bounded import read_json
from pccl.monitor.history import Log

STATIC = Path(__file__).parent / "static"

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}

POLL_SECONDS = 20.0
"""How long a request for events waits for the next one."""

READ_SECONDS = 10.0
"""For a whole request to arrive, from when its connection came or was last answered; and for an answer to be taken."""

REQUEST_BYTES = 128 << 10

CONNECTIONS_MOST = 64
"""Served at the same time. One more closes the oldest of those without the token."""

COOKIE = "pccl_token_{port}"
ACT_COOKIE = "pccl_act_{port}"
"""Browsers do not tell ports of a host apart. The second one is for those who may also act."""

ACTIONS = ("drain", "expel", "stacks")
ACT_BYTES = 1000

ONLY_SHOWS = b"this page only shows: open the address for actions that `pccl web --keys run.master` prints\n"

ATTRIBUTES = "HttpOnly; SameSite=Strict; Path=/"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Page(ThreadingHTTPServer):
    """Serves one run, or one file of events."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        log: Log,
        metrics: Callable[[], tuple[bytes, str]] | None,
        token: str,
        act: Callable[[str, str], tuple[bool, str]] | None = None,
        act_token: str = "",
        *,
        secure: bool = False,
    ) -> None:
        """OSError: it cannot listen there. `metrics`: what a scrape gets, and its type; None: there are none. `act`: does one of
        ACTIONS to a member with this id, and returns whether it did, and a text; for whoever has `act_token` beside `token`.
        `secure`: a proxy in front encrypts, so browsers are to send cookies to it alone.
        """
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.log, self.metrics, self.token = log, metrics, token
        self.act, self.act_token, self.secure = act, act_token, secure
        self.live = metrics is not None
        self._served: dict[Any, bool] = {}
        """The connections, the oldest first, and whether they have shown the token."""
        self._lock = threading.Lock()
        super().__init__(address, _Request)

    @property
    def url(self) -> str:
        """With the token: whoever has it sees the page."""
        host, port = self.server_address[:2]
        text = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{text}:{port}/?token={self.token}"

    @property
    def act_url(self) -> str:
        """The same, of those who may also act; "": nobody may."""
        return f"{self.url}&act={self.act_token}" if self.act is not None and self.act_token else ""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Makes room for one more: a stranger may hold a place only until others want it."""
        with self._lock:
            oldest: Any = None
            if len(self._served) >= CONNECTIONS_MOST:
                oldest = next((one for one, known in self._served.items() if not known), request)
            self._served[request] = False
            self._served.pop(oldest, None)
        if oldest is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
        if oldest is request:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.forget(request)

    def keep(self, request: Any) -> None:
        """Keeps the place of a connection that has shown the token."""
        with self._lock:
            if request in self._served:
                self._served[request] = True

    def forget(self, request: Any) -> None:
        """Frees the place of a connection that has ended."""
        with self._lock:
            self._served.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""


class _Bounded(io.RawIOBase):
    """What a connection sends. TimeoutError: a request has too many bytes, or has not arrived in time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def renew(self) -> None:
        """Begins a request."""
        self._until = time.monotonic() + READ_SECONDS
        self._left = REQUEST_BYTES

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, into: Any) -> int:
        """As of any raw stream."""
        seconds = self._until - time.monotonic()
        if seconds <= 0 or self._left <= 0:
            raise TimeoutError
        self._end.settimeout(seconds)
        count = self._end.recv_into(into, min(len(into), self._left))
        self._left -= count
        return count


class _Request(BaseHTTPRequestHandler):
    server: Page
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self._bounded = _Bounded(self.connection)
        self.rfile = io.BufferedReader(self._bounded)

    def handle_one_request(self) -> None:
        self._bounded.renew()
        super().handle_one_request()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        given = query.get("token", [""])[0]
        if not self._may_see(given):
            self.close_connection = True  # it must not keep its place
            self._answer(HTTPStatus.FORBIDDEN, b"open the address that pccl printed: it has the token\n", "text/plain")
        elif url.path in FILES:
            name, kind = FILES[url.path]
            port, act = self.server.server_address[1], query.get("act", [""])[0]
            told = (COOKIE, given, self.server.token), (ACT_COOKIE, act, self.server.act_token)
            # what was given may be anything where a cookie or a header lets in: also the lines of another answer
            right = [(key.format(port=port), value) for key, value, token in told if _equal(value, token)]
            attributes = f"{ATTRIBUTES}; Secure" if self.server.secure else ATTRIBUTES
            cookies = [("Set-Cookie", f"{key}={value}; {attributes}") for key, value in right]
            self._answer(HTTPStatus.OK, (STATIC / name).read_bytes(), kind, cookies)
        elif url.path == "/events":
            self._send_events(query.get("after", ["0"])[0])
        elif url.path == "/metrics" and self.server.metrics is not None:
            self._answer(HTTPStatus.OK, *self.server.metrics())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n", "text/plain")

    def do_POST(self) -> None:
        """An action. No page of another site can make a browser send it: the cookie is for this site alone, and the origin and a
        header say that this page has asked.
        """
        self.close_connection = True  # what else was sent is not read
        length = self.headers.get("Content-Length", "")
        origin = urlsplit(self.headers.get("Origin", "")).netloc
        if urlsplit(self.path).path != "/act":
            self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n", "text/plain")
        elif self.server.act is None or not self._may_act():
            self._answer(HTTPStatus.FORBIDDEN, ONLY_SHOWS, "text/plain")
        elif origin != self.headers.get("Host") or self.headers.get("X-PCCL") != "act":
            self._answer(HTTPStatus.FORBIDDEN, b"this was not asked by the page itself\n", "text/plain")
        elif not (length.isascii() and length.isdigit() and len(length) < 9 and int(length) <= ACT_BYTES):
            self._answer(HTTPStatus.BAD_REQUEST, b"a short body is needed\n", "text/plain")
        else:
            try:
                asked = read_json(self.rfile.read(int(length)), ACT_BYTES)
                action, member = asked["action"], asked["member"]
                if action not in ACTIONS or not isinstance(member, str):
                    raise TypeError
            except (ValueError, KeyError, TypeError):
                self._answer(HTTPStatus.BAD_REQUEST, b"action and member are needed\n", "text/plain")
                return
            done, text = self.server.act(action, member)
            self._answer(HTTPStatus.OK if done else HTTPStatus.CONFLICT, text.encode(), "text/plain; charset=utf-8")

    def _cookie_of(self, name: str) -> str:
        cookies = (one.strip().partition("=") for one in self.headers.get("Cookie", "").split(";"))
        return {key: value for key, _, value in cookies}.get(name.format(port=self.server.server_address[1]), "")

    def _may_see(self, given: str) -> bool:
        """By the address, a cookie, or `Authorization: Bearer`, as Prometheus sends it. Keeps the place of who may."""
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        found = any(_equal(one, self.server.token) for one in (given, self._cookie_of(COOKIE), bearer))
        if found:
            self.server.keep(self.connection)
        return found

    def _may_act(self) -> bool:
        return _equal(self._cookie_of(COOKIE), self.server.token) and _equal(self._cookie_of(ACT_COOKIE), self.server.act_token)

    def _send_events(self, after: str) -> None:
        if not (after.isascii() and after.isdigit() and len(after) < 16):
            self._answer(HTTPStatus.BAD_REQUEST, b"after: the number of an event\n", "text/plain")
            return
        lines, number = self.server.log.after(int(after), POLL_SECONDS if self.server.live else 0.0)
        live = b"true" if self.server.live else b"false"
        acts = b"true" if self.server.act is not None and self._may_act() else b"false"
        head = b'{"log":"%s","next":%d,"live":%s,"acts":%s,"events":[' % (self.server.log.name.encode(), number, live, acts)
        body = head + b",".join(lines) + b"]}"
        self._answer(HTTPStatus.OK, body, "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, cookies: Iterable[tuple[str, str]] = ()) -> None:
        self.connection.settimeout(READ_SECONDS)
        self.send_response(status)
        for name, value in ("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS.items(), *cookies:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "pccl"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests come every second."""


def _equal(given: str, right: str) -> bool:
    """Whether this is the token; never, if there is none. It takes as long for each of its length."""
    return bool(right) and hmac.compare_digest(given.encode(), right.encode())


def new_token() -> str:
    """For a page without keys."""
    return secrets.token_urlsafe(24)
