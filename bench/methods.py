"""The ways to move and sum tensors that are compared: pccl, torch's gloo, the floor, and plain TCP."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import harness
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


def _ring(rank: int, ports: Sequence[int]) -> tuple[socket.socket, socket.socket]:
    """Returns connections with Reno, from the predecessor and to the successor. All peers call this at about the same time."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # what it accepts begins with the same
        listener.bind(("127.0.0.1", ports[rank]))
        listener.listen()
        out = _dial(("127.0.0.1", ports[(rank + 1) % len(ports)]))
        into, _ = listener.accept()
    for one in (into, out):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)
    return into, out


def _dial(address: tuple[str, int]) -> socket.socket:
    end = time.monotonic() + 60
    while True:
        made = socket.socket()
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        try:
            made.connect(address)
            return made
        except ConnectionRefusedError:
            made.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class Floor:
    """The floor under an all-reduce (bench/floor.c): this peer's part, in its own process and on its own tensors."""

    def __init__(self, peer: Peer, plan: FloorPlan) -> None:
        self._place = peer.rank, peer.world
        self._library = _floor(plan.library)
        self._ring = _ring(peer.rank, plan.ports)
        with open(plan.memory, "r+b") as memory:
            self._memory = mmap.mmap(memory.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._slots = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def calls(self, source: Any, target: Any) -> dict[str, Callable[[], None]]:
        """Returns both floors for the contiguous float32 tensors of torch `source` and `target`, which do not overlap."""
        arrays = source.data_ptr(), target.data_ptr(), source.numel()

        def by_tcp() -> None:
            if self._library.floor_tcp(*(one.fileno() for one in self._ring), *self._place, *arrays) != 0:
                raise harness.BenchError("a connection of the floor has failed")

        def by_slots() -> None:
            self._library.floor_slots(self._slots, *self._place, *arrays)

        return {harness.FLOORS[True]: by_tcp, harness.FLOORS[False]: by_slots}


# ---- plain TCP ----

LANES = 4


def plain_tcp(peer: Peer, size: int, port: int) -> None:
    """A worker: rank 0 sends `size` bytes to rank 1 over LANES connections, at each order once; both tell the seconds."""
    part = size // LANES
    memory = [memoryview(bytearray(os.urandom(MIB) * -(-part // MIB)))[:part] for _ in range(LANES)]
    if peer.rank == 1:
        with socket.create_server(("127.0.0.1", port), backlog=LANES) as listener:
            peer.barrier.wait()
            ends = [listener.accept()[0] for _ in range(LANES)]
    else:
        peer.barrier.wait()
        ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(LANES)]

    def receive(end: socket.socket, into: memoryview) -> None:
        got = 0
        while got < len(into):
            got += end.recv_into(into[got : got + MIB])

    while True:
        harness.order(peer)
        peer.barrier.wait()
        start = time.perf_counter()
        act = receive if peer.rank == 1 else socket.socket.sendall
        threads = [threading.Thread(target=act, args=pair) for pair in zip(ends, memory, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        harness.tell(peer, time.perf_counter() - start)
