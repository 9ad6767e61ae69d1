"""Processes of the tests, forked from a server that has imported everything, so that each costs milliseconds."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from pccl import JoinError, MasterNode, PCCLError
from pccl._run import keys as _keys
from pccl.lab.ports import free_ports

CLONE_NEWNET = 0x40000000

PATIENCE = float(os.environ.get("PCCL_TEST_PATIENCE", "60"))
"""How long anything may take, in seconds: far longer than it does, so only a hang meets it; more where there is other work."""


def enter_network(namespace: str) -> None:
    with open(f"/run/netns/{namespace}") as opened:
        assert ctypes.CDLL(None).setns(opened.fileno(), CLONE_NEWNET) == 0


def secrets_of(path: Path) -> list[str]:
    """Returns what nobody may see of the keys in a file for masters, as hexadecimal digits."""
    _, found = _keys.read_file(path)
    assert found.master_key is not None
    return [part.hex() for part in (*found.secrets, found.master_key)]


def keys_of_peers() -> dict[str, str]:
    """What the environment of a peer that starts no master has in place of the keys of masters; without keys nothing."""
    keys = os.environ.get("PCCL_KEYS", "")
    return {"PCCL_KEYS": keys.removesuffix(".master") + ".peer"} if keys.endswith(".master") else {}


def _log_to(stderr: Path | None) -> None:
    if stderr is not None:
        with stderr.open("ab") as opened:
            os.dup2(opened.fileno(), 2)


def take_environment(environment: dict[str, str]) -> None:
    """At the begin of a process: what it inherits is the environment of the test that started the server."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR is read again


def _serve(role: Any, pipe: Connection, environment: dict[str, str], stderr: Path | None, arguments: tuple[Any, ...]) -> None:
    _log_to(stderr)
    take_environment(environment)
    if getattr(role, "IS_NO_MASTER", False):  # then it has no keys of masters either (tests/conftest.py)
        os.environ.update(keys_of_peers())
    if "NETNS" in environment:
        enter_network(environment["NETNS"])
    announces = getattr(role, "ANNOUNCES", False)  # says when it begins a call, which Ctrl-C may then end
    signal.signal(signal.SIGINT, signal.default_int_handler if announces else signal.SIG_IGN)
    peer = role(pipe, *arguments)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            if announces:
                pipe.send(("begun", method))
            answer = ("ok", getattr(peer, method)(*arguments))
        except KeyboardInterrupt:
            answer = ("error", "KeyboardInterrupt")
        except PCCLError as error:
            answer = ("error", error.result.name)
            if isinstance(error, JoinError):
                answer = ("crash", traceback.format_exc())
            if method in ("follow", "join_late", "reduce_on"):
                answer = ("crash", f"{traceback.format_exc()}{error.detail}\nlog: {peer.log}")
        except BaseException:
            answer = ("crash", f"{traceback.format_exc()}\nlog: {getattr(peer, 'log', None)}")
        with contextlib.suppress(BrokenPipeError):
            pipe.send(answer)


def _serve_master(
    pipe: Connection,
    address: str,
    heartbeat_limit: float,
    masters: str,
    environment: dict[str, str],
    stderr: Path | None,
    keys: str | None,
) -> None:
    _log_to(stderr)
    take_environment(environment)
    master = MasterNode(address, heartbeat_limit=heartbeat_limit, masters=masters or None, keys=keys)
    while True:
        try:
            master.run()
            break
        except PCCLError:  # the port is in use by one that is on its way out
            time.sleep(0.001)
    pipe.send("it listens")
    with contextlib.suppress(EOFError):
        pipe.recv()
    os._exit(0)


# ---- in the test's process ----

_context = multiprocessing.get_context("forkserver")
_preloaded: list[str] = []
_server = threading.Lock()


def preload(module: str) -> None:
    """The server is to import it, if it has not started yet: then what it needs costs each process nothing."""
    if module != "__mp_main__":
        _preloaded.append(module)
        _context.set_forkserver_preload(_preloaded)


def start_server() -> None:
    """Starts the server that peers are forked from. It finds what to import on PYTHONPATH alone."""
    with _server:
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        try:
            forkserver.ensure_running()
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before


class Performer:
    """A process that does what it is told, seen from the test."""

    def __init__(
        self,
        role: Any,
        number: int,
        arguments: tuple[Any, ...],
        environment: dict[str, str] | None = None,
        stderr: Path | None = None,
    ) -> None:
        """`role(pipe, *arguments)` is what it can be told: its methods, and in `log` what to show when one of them crashes."""
        self.number = number
        start_server()
        self._pipe, inner = _context.Pipe()
        self._process = _context.Process(
            target=_serve, args=(role, inner, {**os.environ, **(environment or {})}, stderr, arguments), daemon=True
        )
        self._process.start()
        inner.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, method: str, *arguments: Any) -> Self:
        with contextlib.suppress(ConnectionError):  # it has died
            self._pipe.send((method, arguments))
        return self

    def answer(self, timeout: float = PATIENCE) -> Any:
        """What the call returned, or the name of its Result when it failed; see `_died` for a process that has died."""
        end = time.monotonic() + timeout
        while True:
            if not self._pipe.poll(max(0.0, end - time.monotonic())):
                raise TimeoutError(f"process {self.number} did not answer within {timeout} s")
            try:
                kind, value = self._pipe.recv()
            except (EOFError, OSError):  # perhaps in the middle of its answer
                return self._died()
            if kind == "crash":
                raise AssertionError(f"process {self.number}: {value}")
            if kind in ("ok", "error"):
                return value
            self._heard(kind)

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.tell(method, *arguments).answer()

    def _heard(self, kind: str) -> None:
        """Something it says in the middle of a call."""

    def _died(self) -> Any:
        """What `answer` gives for a process that has died."""
        return None

    def signal(self, number: signal.Signals) -> None:
        """Unless it has died already."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self._process.kill()
        self._process.join(PATIENCE)


class MasterProcess:
    """A master that may be killed, and started again at its address."""

    def __init__(
        self,
        address: str = "",
        *,
        heartbeat_limit: float = 2.0,
        masters: str = "",
        stderr: Path | None = None,
        keys: str | None = None,
    ) -> None:
        """`keys` is a file for masters; None: that of PCCL_KEYS, if any."""
        self.address = address or f"127.0.0.1:{free_ports(1)[0]}"
        self._heartbeat_limit = heartbeat_limit
        self._masters = masters
        self._stderr = stderr
        self._keys = keys
        start_server()
        self.start()

    def start(self) -> None:
        self._pipe, inner = _context.Pipe()
        self._process = _context.Process(
            target=_serve_master,
            args=(inner, self.address, self._heartbeat_limit, self._masters, dict(os.environ), self._stderr, self._keys),
            daemon=True,
        )
        self._process.start()
        inner.close()
        self._pipe.recv()

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self._process.kill()
        self._process.join(PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def __enter__(self) -> MasterProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
