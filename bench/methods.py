"""The ways to move and sum tensors that are compared: pccl, torch's gloo, the floor, and bare TCP."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import harness
from bare_tcp import BareTcp, congestion_here
from harness import MIB, Peer

import pccl
from pccl.lab.ports import free_ports

SAME_HOST_MEMORY = "PCCL_SAME_HOST_MEMORY"


class Addresses(NamedTuple):
    """Of two runs with the same peers."""

    usual: str  # every way that the library knows
    tcp: str  # peers on one host use TCP too, as peers on different hosts do


def join_both(addresses: Addresses, world: int) -> dict[str, pccl.Communicator]:
    """The first may read tensors out of a neighbour's memory, the second may not."""
    usual = join_run(addresses.usual, world)
    settle(usual)
    os.environ[SAME_HOST_MEMORY] = "0"
    try:
        by_tcp = join_run(addresses.tcp, world)
        settle(by_tcp)
    finally:
        del os.environ[SAME_HOST_MEMORY]
    return {"pccl": usual, "pccl by TCP": by_tcp}


def settle(comm: pccl.Communicator) -> None:
    """A small op has heard from every neighbour, and what each said first on its link is what it offers."""
    import numpy as np

    one = np.zeros(1, dtype=np.float32)
    comm.all_reduce(one, one, op=pccl.ReduceOp.SUM)


def join_run(address: str, world: int, lanes: int = 0) -> pccl.Communicator:
    """A communicator whose run has `world` peers; all of them call this."""
    comm = pccl.Communicator(address, p2p_connection_pool_size=lanes)
    comm.connect()
    form(comm, world)
    return comm


def form(comm: pccl.Communicator, world: int) -> None:
    """Returns once the run has `world` peers; all of them call this."""
    comm.wait_for_peers(world)


def update(comm: pccl.Communicator) -> None:
    """A vote, after a pause in which somebody may come."""
    time.sleep(0.005)
    comm.update_topology()


def descriptors() -> list[str]:
    """Those of this process, for `congestion_since`."""
    return os.listdir("/proc/self/fd")


def congestion_since(before: list[str]) -> str:
    """The congestion control of the TCP connections made since."""
    return " ".join(congestion_here(without=before)) or "-"


def join_gloo(peer: Peer, port: int, host: str = "127.0.0.1", interface: str = "lo") -> Any:
    """torch.distributed with one process group over gloo; rank 0 lives at `host`."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=peer.rank, world_size=peer.world)
    return dist


# ---- the floor ----


class FloorPlan(NamedTuple):
    """What the peers of a fleet need to make a `Floor`."""

    library: Path
    ports: Sequence[int]
    memory: str


@contextlib.contextmanager
def floor_plan(world: int) -> Iterator[FloorPlan]:
    """Builds bench/floor.c, and makes the memory that `world` peers share."""
    library = harness.build("floor").with_name("libfloor.so")
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="pccl-floor-") as memory:
        memory.write(bytes(_floor(library).floor_slots_bytes(world)))
        memory.flush()
        yield FloorPlan(library, free_ports(world), memory.name)


def _floor(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    loaded.floor_slots_bytes.argtypes, loaded.floor_slots_bytes.restype = [size], size
    loaded.floor_slots.argtypes, loaded.floor_slots.restype = [pointer, size, size, pointer, pointer, size], None
    loaded.floor_tcp.argtypes = [ctypes.c_int, ctypes.c_int, size, size, pointer, pointer, size]
    return loaded


class Floor:
    """The floor under an all-reduce (bench/floor.c): this peer's part, in its own process and on its own tensors."""

    def __init__(self, peer: Peer, plan: FloorPlan) -> None:
        self._place = peer.rank, peer.world
        self._library = _floor(plan.library)
        self._ring = BareTcp(peer.rank, plan.ports, "reno")
        with open(plan.memory, "r+b") as memory:
            self._memory = mmap.mmap(memory.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._slots = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def calls(self, source: Any, target: Any) -> dict[str, Callable[[], None]]:
        """Returns both floors for the contiguous float32 tensors of torch `source` and `target`, which do not overlap."""
        arrays = source.data_ptr(), target.data_ptr(), source.numel()

        def by_tcp() -> None:
            if self._library.floor_tcp(*self._ring.descriptors, *self._place, *arrays) != 0:
                raise harness.BenchError("a connection of the floor has failed")

        def by_slots() -> None:
            self._library.floor_slots(self._slots, *self._place, *arrays)

        return {harness.FLOORS[True]: by_tcp, harness.FLOORS[False]: by_slots}


class RawTcp:
    """Two peers send each other the same number of bytes at once, and do nothing with them: the ceiling for two peers."""

    PIECE = MIB // 4
    SCRATCH = MIB  # what was received stays in the cache

    def __init__(self, peer: Peer, port: int, host: str = "127.0.0.1") -> None:
        if peer.rank == 0:
            with socket.create_server((host, port)) as listener:
                peer.barrier.wait()
                self._socket, _ = listener.accept()
        else:
            peer.barrier.wait()
            self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._scratch = memoryview(bytearray(self.SCRATCH))
        self._poll = select.poll()

    def exchange(self, data: memoryview) -> None:
        sent = received = 0
        while sent < len(data) or received < len(data):
            moved = 0
            if sent < len(data):
                moved = self._attempt(self._socket.send, data[sent : sent + self.PIECE])
                sent += moved
            if received < len(data):
                at = received % self.SCRATCH
                end = min(at + self.PIECE, self.SCRATCH, at + len(data) - received)
                got = self._attempt(self._socket.recv_into, self._scratch[at:end])
                received += got
                moved += got
            if moved == 0:
                wanted = (select.POLLOUT if sent < len(data) else 0) | (select.POLLIN if received < len(data) else 0)
                self._poll.register(self._socket, wanted)
                self._poll.poll()

    @staticmethod
    def _attempt(call: Any, buffer: memoryview) -> int:
        try:
            return int(call(buffer))
        except BlockingIOError:
            return 0
