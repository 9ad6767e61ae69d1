"""One process of bench/compare.py, run by the Python of the build that it belongs to: a peer, or a master.

Orders come as JSON lines on stdin, one answer to each goes to stdout. Only pccl's public names are used here, and nothing else of
bench/, since the two builds may be far apart.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import sys
import time
from typing import Any

import numpy as np

import pccl

PR_SET_PDEATHSIG = 1
SUM = pccl.ReduceOp.SUM


class Peer:
    """What a peer holds between orders; each public method is an order."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._comm = pccl.Communicator(address)
        self._memory: dict[str, Any] = {}
        self._state: Any = None

    def form(self, world: int, first: bool) -> str:
        """Joins, if this is the first time, and waits until all are there; tells where the build lies."""
        if first:
            self._comm.connect()
        self._comm.wait_for_peers(world, timeout=60)
        self._barrier()
        return os.path.dirname(pccl.__file__)

    def reduce(self, size: int, calls: int, ops: int, in_place: bool) -> list[float]:
        """Wall and CPU seconds of a call, in which `ops` sums are under way at once."""
        sources = self._tensors("source", ops, size, 0.0 if in_place else 1.0)
        targets = sources if in_place else self._tensors("target", ops, size, 7.0)

        def call() -> None:
            if ops == 1:
                self._comm.all_reduce(sources[0], targets[0], op=SUM)
                return
            pairs = zip(sources, targets, strict=True)
            for handle in [self._comm.all_reduce_async(*pair, op=SUM, tag=tag) for tag, pair in enumerate(pairs)]:
                handle.result()

        call()
        self._barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            call()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        expected = 0.0 if in_place else self._comm.world_size
        if any(target[0] != expected or target[-1] != expected for target in targets):
            raise ArithmeticError("a sum is wrong")
        return [wall / calls, cpu / calls]

    def lose(self, size: int, start: float) -> list[float]:
        """From `start` on sums until a peer is lost: when the error came, and when the repeated sum had succeeded."""
        [source], [target] = self._tensors("source", 1, size, 1.0), self._tensors("target", 1, size, 7.0)
        time.sleep(max(0.0, start - time.monotonic()))
        while True:
            try:
                self._comm.all_reduce(source, target, op=SUM)
            except pccl.PeerLostError:
                failed = time.monotonic()
                self._comm.all_reduce(source, target, op=SUM)
                return [failed, time.monotonic()]

    def serve(self, visits: int) -> None:
        """Admits so many visitors, one after another."""
        admitted = 0
        while admitted < visits:
            if self._comm.are_peers_pending():
                self._comm.update_topology()
                admitted += 1

    def visit(self, visits: int) -> list[float]:
        """Joins and leaves so many times; seconds of the median `connect`."""
        seconds = []
        for visit in range(visits):
            time.sleep(0.005 + 0.003 * (visit % 4))
            with pccl.Communicator(self._address) as comm:
                start = time.perf_counter()
                comm.connect()
                seconds.append(time.perf_counter() - start)
        return [statistics.median(seconds)]

    def sync(self, size: int, stale: str) -> list[float]:
        """One sync, before which `stale` of the state ("nothing", "5 %", "all") was made to differ here; wall and CPU seconds."""
        if self._state is None or self._memory["state"].size != size:
            self._memory["state"] = np.frombuffer(np.random.default_rng(1).bytes(size), np.uint8).copy()
            self._state = pccl.SharedState([pccl.TensorInfo.from_numpy(self._memory["state"], "state")])
        content = self._memory["state"]
        if stale == "all":
            content ^= 255
        elif stale == "5 %":
            content[:: 20 << 18] ^= 255
        if stale != "nothing":
            self._state.revision = 0
        else:
            self._state.push_revision()
        self._barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        self._comm.sync_shared_state(self._state)
        return [time.perf_counter() - wall, time.process_time() - cpu]

    def hash(self) -> str:
        """Of the state."""
        return str(self._state.hash())

    def _tensors(self, name: str, count: int, size: int, value: float) -> list[Any]:
        """Written before they are timed, and kept for the next order of this shape."""
        shape = (count, size, value)
        if self._memory.get(name + " shape") != shape:
            self._memory[name] = None
            self._memory[name] = [np.full(size // 4, value, np.float32) for _ in range(count)]
            self._memory[name + " shape"] = shape
        return list(self._memory[name])

    def _barrier(self) -> None:
        """Again after a loss, for a visitor may just have left."""
        one = np.zeros(1, np.float32)
        while True:
            try:
                self._comm.all_reduce(one, one, op=SUM)
                return
            except pccl.PeerLostError:
                pass


class Master:
    """A master; each public method is an order."""

    def __init__(self, _: str) -> None:
        self._node = pccl.MasterNode("127.0.0.1:0")
        self._node.run()

    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._node.port}"

    def cpu(self) -> float:
        """CPU seconds so far."""
        return time.process_time()


def main(role: str, address: str, realtime: bool) -> None:
    """Applies orders until stdin ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if realtime and role == "peer":
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    actor: Any = Master(address) if role == "master" else Peer(address)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"value": getattr(actor, order.pop("word"))(**order)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # whoever closes stdin has what it wanted


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "realtime")
