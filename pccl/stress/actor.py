"""What a peer's process has, whatever it reduces by: its task, its link to the orchestrator, and the orders that end it."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from typing import Any

import pccl
from pccl.lab.link import Link, Order
from pccl.stress.content import contents
from pccl.stress.cut import cut
from pccl.stress.progress import Board
from pccl.stress.reports import Flaw, Report, Task

FRESH = -1
"""What a newcomer, who does not know the step, says when all meet."""


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
        self._link = Link(self._end, self._obey)
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

    def _obey(self, order: Order) -> None:
        match order["order"]:
            case "leave":
                self._leaving.set()
            case "end":
                self._ending.set()
            case "cut":
                ports = {int(address.rpartition(":")[2]) for address in self._task.masters.split(",")}
                cut(order["how"], ports, self._random)
