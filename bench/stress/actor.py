"""What a peer's process has, whatever it reduces by: its task, its link to the orchestrator, and the orders that end it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pccl
from stress.content import contents
from stress.lab.link import Link, Order
from stress.reports import Board, Flaw, Report, Task

FRESH = -1
"""What a newcomer, who does not know the step, says when all meet."""
LIVES = 1 << 16
"""More than the memberships that a process has one after another."""


class FlawError(Exception):
    """Something that must not happen; `claim` is a key of judge.CLAIMS."""

    def __init__(self, claim: str, detail: str) -> None:
        super().__init__(detail)
        self.claim = claim


class Actor(ABC):
    """One process. `perform` is its whole life."""

    def __init__(self, given: dict[str, Any], end: socket.socket) -> None:
        self._task = Task.from_fields(given)
        self._random = random.Random(f"peer {self._task.seed} {self._task.serial}")
        self._contents = contents()
        self._place = Board(self._task.board).writer(self._task.code)
        self._leaving = threading.Event()  # by order: alone, at once
        self._ending = threading.Event()  # by order: all together
        self._end = end
        self._link: Link

    def perform(self) -> int:
        """Runs; whatever is raised is a flaw. Gives the exit status."""
        self._link = Link(self._end, self._apply)
        try:
            self._run()
            return os.EX_OK
        except FlawError as error:
            self._flaw(error.claim, str(error))
        except pccl.PCCLError as error:
            self._flaw("error", f"{error}\n{traceback.format_exc()}")
        except Exception:
            self._flaw("error", traceback.format_exc())
        return os.EX_SOFTWARE

    @abstractmethod
    def _run(self) -> None:
        """Until it is told to leave."""

    def _tell(self, report: Report) -> None:
        self._link.tell(report)

    def _flaw(self, claim: str, detail: str) -> None:
        """Tells what must not happen."""
        self._tell(Flaw(at=time.monotonic(), claim=claim, detail=detail))

    def _apply(self, order: Order) -> None:
        match order["order"]:
            case "leave":
                self._leaving.set()
            case "end":
                self._ending.set()
            case "cut":
                ports = {int(address.rpartition(":")[2]) for address in self._task.masters.split(",")}
                cut(order["how"], ports, self._random)


# ---- cutting: a process breaks its own connections, which needs no rights ----

_libc = ctypes.CDLL(None, use_errno=True)


def cut(how: str, keep_ports: set[int], rng: random.Random) -> int:
    """Breaks one of the connections to other processes, or all; gives how many. Those to `keep_ports` stay.

    What its library sees is what a broken network would do.
    """
    share, way = how.split()
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(one) for one in _sockets()]
        kept = keep_ports | {one.getsockname()[1] for one in ours}  # by port: one end may call the address ::ffff:127.0.0.1
        found = [one for one in ours if _peer_port(one) not in kept]
        chosen = found if share == "all" else rng.sample(found, min(1, len(found)))
        for one in chosen:
            with contextlib.suppress(OSError):  # it has just ended by itself
                _break(one, way)
        return len(chosen)


def _sockets() -> Iterator[socket.socket]:
    """Copies of this process's, as the library may close its own at any moment."""
    seen = set()  # the copies made here are descriptors too
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.startswith("socket:") or target in seen:
                continue
            seen.add(target)
            one = socket.socket(fileno=os.dup(int(name)))
            if one.family in (socket.AF_INET, socket.AF_INET6):
                yield one
            else:
                one.close()


def _peer_port(one: socket.socket) -> int:
    """Where it is connected to; its own for one that listens, or is not connected yet."""
    try:
        return int(one.getpeername()[1])
    except OSError:
        return int(one.getsockname()[1])


def _break(one: socket.socket, way: str) -> None:
    if way == "reset":
        unspecified = (ctypes.c_ubyte * 16)()  # AF_UNSPEC: the kernel drops the connection and sends an RST
        _libc.connect(one.fileno(), unspecified, 16)
    else:
        one.shutdown(socket.SHUT_WR if way == "half" else socket.SHUT_RDWR)
