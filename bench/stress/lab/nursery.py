"""The process that all peers are forked from: ``python -m stress.lab.nursery ORDERS ANSWERS MODULES``.

It has imported what they need, so that a new peer costs milliseconds, not seconds. An order is one packet on the socket ORDERS,
with the descriptors that the child gets; answers are JSON lines on the pipe ANSWERS: the process id of each child, and later how
it ended. Children die with the nursery, and the nursery ends when the other end of ORDERS is closed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any

from pccl._host.processes import die_with_parent

PACKET_BYTES = 1 << 16
DUMP_SIGNAL = signal.SIGUSR1
"""Makes a child write all its Python stacks to its log."""


def serve(orders: socket.socket, answers: int) -> None:
    """Until the orchestrator closes its end."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ours = [orders.fileno(), answers, wake, waker]
    with selectors.DefaultSelector() as selector:
        ours.append(selector.fileno())
        selector.register(orders, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 1 << 12)
                for answer in _ended_children():
                    _answer(answers, answer)
            if orders.fileno() in ready:
                packet, descriptors, _, _ = socket.recv_fds(orders, PACKET_BYTES, 2)
                if not packet:
                    return
                pid = _fork(json.loads(packet), descriptors, ours)
                for descriptor in descriptors:
                    os.close(descriptor)
                _answer(answers, {"pid": pid})


def _answer(answers: int, answer: dict[str, int]) -> None:
    os.write(answers, json.dumps(answer).encode() + b"\n")


def _ended_children() -> list[dict[str, int]]:
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append({"ended": pid, "status": os.waitstatus_to_exitcode(status)})
    return ended


def _fork(order: dict[str, Any], descriptors: list[int], ours: list[int]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent(parent)
        os.setsid()  # Ctrl-C is for the orchestrator alone
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in ours:
            os.close(descriptor)
        end, log = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.update(order["environment"])
        faulthandler.register(DUMP_SIGNAL, all_threads=True)
        module, _, function = order["life"].partition(":")
        status = getattr(importlib.import_module(module), function)(order["task"], socket.socket(fileno=end))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> int:
    """Serves with the descriptors given as arguments."""
    orders, answers, modules = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(os.getppid())
    for module in modules.split(","):
        importlib.import_module(module)
    serve(socket.socket(fileno=int(orders)), int(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
