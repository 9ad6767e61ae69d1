"""The page of a run: static files, events and metrics over HTTP, for whoever has the token."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable
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
"""Browsers do not tell ports of a host apart."""

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

    def __init__(self, address: tuple[str, int], log: Log, metrics: Callable[[], tuple[bytes, str]] | None, token: str) -> None:
        """OSError: it cannot listen there. `metrics`: what a scrape gets, and its type; None: there are none."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.log, self.metrics, self.token = log, metrics, token
        self.live = metrics is not None
        self._room = threading.BoundedSemaphore(CONNECTIONS_MOST)
        super().__init__(address, _Request)

    @property
    def url(self) -> str:
        """With the token: whoever has it sees the page."""
        host, port = self.server_address[:2]
        text = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{text}:{port}/?token={self.token}"

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
            cookie = {"Set-Cookie": f"{self._cookie}={given}; HttpOnly; SameSite=Strict; Path=/"} if given else {}
            self._answer(HTTPStatus.OK, (STATIC / name).read_bytes(), kind, cookie)
        elif url.path == "/events":
            self._send_events(query.get("after", ["0"])[0])
        elif url.path == "/metrics" and self.server.metrics is not None:
            self._answer(HTTPStatus.OK, *self.server.metrics())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n", "text/plain")

    @property
    def _cookie(self) -> str:
        return COOKIE.format(port=self.server.server_address[1])

    def _may_see(self, given: str) -> bool:
        """By the address, a cookie, or `Authorization: Bearer`, as Prometheus sends it."""
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        right = self.server.token.encode()
        return any(hmac.compare_digest(one.encode(), right) for one in (given, cookie.value if cookie else "", bearer))

    def _send_events(self, after: str) -> None:
        if not (after.isascii() and after.isdigit() and len(after) < 16):
            self._answer(HTTPStatus.BAD_REQUEST, b"after: the number of an event\n", "text/plain")
            return
        lines, number = self.server.log.after(int(after), POLL_SECONDS if self.server.live else 0.0)
        live = b"true" if self.server.live else b"false"
        body = b'{"next":%d,"live":%s,"events":[' % (number, live) + b",".join(lines) + b"]}"
        self._answer(HTTPStatus.OK, body, "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "pccl"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests come every second."""


def new_token() -> str:
    """For a page without keys."""
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Whether what listens there is reached from this host only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
