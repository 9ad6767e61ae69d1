"""The page of a run: static files, events and metrics over HTTP, for whoever has the token."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
"""For a request to arrive, and for its answer to be taken."""

CONNECTIONS_MOST = 64

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
    ) -> None:
        """OSError: it cannot listen there. `metrics`: what a scrape gets, and its type; None: there are none. `act`: does one of
        ACTIONS to a member with this id, and returns whether it did, and a text; for whoever has `act_token` beside `token`.
        """
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.log, self.metrics, self.token = log, metrics, token
        self.act, self.act_token = act, act_token
        self.live = metrics is not None
        self._room = threading.BoundedSemaphore(CONNECTIONS_MOST)
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
        """Refuses what is more than it can serve."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""


class _Request(BaseHTTPRequestHandler):
    server: Page
    timeout = READ_SECONDS
    protocol_version = "HTTP/1.1"

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
            cookies = [("Set-Cookie", f"{key}={value}; {ATTRIBUTES}") for key, value in right]
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
        elif not (length.isascii() and length.isdigit() and int(length) <= ACT_BYTES):
            self._answer(HTTPStatus.BAD_REQUEST, b"a short body is needed\n", "text/plain")
        else:
            try:
                asked = json.loads(self.rfile.read(int(length)))
                action, member = asked["action"], asked["member"]
                if action not in ACTIONS or not isinstance(member, str):
                    raise TypeError
            except (ValueError, KeyError, TypeError):
                self._answer(HTTPStatus.BAD_REQUEST, b"action and member are needed\n", "text/plain")
                return
            done, text = self.server.act(action, member)
            self._answer(HTTPStatus.OK if done else HTTPStatus.CONFLICT, text.encode(), "text/plain; charset=utf-8")

    def _cookie_of(self, name: str) -> str:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(name.format(port=self.server.server_address[1]))
        except CookieError:
            cookie = None
        return cookie.value if cookie else ""

    def _may_see(self, given: str) -> bool:
        """By the address, a cookie, or `Authorization: Bearer`, as Prometheus sends it."""
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return any(_equal(one, self.server.token) for one in (given, self._cookie_of(COOKIE), bearer))

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
