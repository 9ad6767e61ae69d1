"""An op beside a download on a narrow emulated link with a shallow queue: what each gets. Needs root."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import harness
import methods
from harness import KIB, MIB, Peer, Row
from netlab import Lab, Link, fleet_at

import pccl
from pccl.lab.ports import free_ports

METHOD = """Two peers in two network namespaces, joined by bench/wan's emulated link. One connection with cubic sends from the
first to the second all the time. After the warm-up, fp32 reductions run one after another, with the lanes that the library
chooses and PCCL_CONGESTION_CONTROL as said; the system's choice is cubic, by the route. Both rates are those of the second half
of the reductions: bytes of tensors that each peer sends, and bytes of the download that arrive, headers not counted."""


class Download:
    """One connection with cubic: sends as much as it can, or counts what arrives."""

    def __init__(self, peer: Peer, host: str, port: int) -> None:
        self.arrived = 0
        if peer.rank == 0:
            with socket.create_server((host, port)) as listener:
                peer.barrier.wait()
                self._socket, _ = listener.accept()
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        else:
            peer.barrier.wait()
            self._socket = socket.create_connection((host, port))
        threading.Thread(target=self._send if peer.rank == 0 else self._receive, daemon=True).start()

    def _send(self) -> None:
        piece = bytes(64 * KIB)
        while True:
            self._socket.sendall(piece)

    def _receive(self) -> None:
        room = bytearray(256 * KIB)
        while got := self._socket.recv_into(room):
            self.arrived += got


def worker(peer: Peer, address: str, host: str, port: int, size: int, warm_up: float, seconds: float, control: str) -> Any:
    import numpy as np

    os.environ["PCCL_CONGESTION_CONTROL"] = control
    source = np.ones(size // 4, np.float32)
    target = np.ones_like(source)
    comm = methods.join_run(address, peer.world, 0)
    methods.settle(comm)
    download = Download(peer, host, port)
    time.sleep(warm_up)
    marks, lanes = [], 0
    begin = time.monotonic()
    while target[0]:  # all end after the same op
        source[0] = time.monotonic() < begin + seconds
        comm.all_reduce(source, target, op=pccl.ReduceOp.MIN)
        marks.append((time.monotonic(), download.arrived))
        lanes = max((link.lanes_in_use for link in comm.links()), default=lanes)  # the other one may have left
    comm.close()
    middle = len(marks) // 2
    (since, before), (until, after) = marks[middle], marks[-1]
    span = until - since
    return (len(marks) - 1 - middle) * size * 8e-6 / span, (after - before) * 8e-6 / span, lanes


def measure(link: Link, control: str, args: Any) -> Row:
    with Lab() as lab:
        places = lab.long_pair(link)
        for place in places:
            lab.congestion(place, "cubic")
        with fleet_at(
            places,
            worker,
            host=places[0].address,
            port=free_ports(1)[0],
            size=args.size,
            warm_up=args.warm_up,
            seconds=args.seconds,
            control=control,
        ) as fleet:
            (op, _, lanes), (_, download, _) = fleet.results()
    return {
        "control": control,
        "lanes": lanes,
        "op Mbit/s": op,
        "download Mbit/s": download,
        "op %": 100 * op / link.megabits,
        "download %": 100 * download / link.megabits,
    }


def run() -> None:
    parser = harness.parser(__doc__, blocks=1)
    parser.add_argument("--size", type=int, default=16 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--control", nargs="+", default=["system", "bbr"], help="values of PCCL_CONGESTION_CONTROL")
    parser.add_argument("--megabits", type=float, default=100, help="rate of the link, each way")
    parser.add_argument("--delay-ms", type=float, default=15, help="one way")
    parser.add_argument("--queue-ms", type=float, default=50, help="what the queue of the link holds")
    parser.add_argument("--warm-up", type=float, default=4, metavar="SECONDS", help="the download alone")
    parser.add_argument("--seconds", type=float, default=24, help="of sums, the second half of which is measured")
    args = parser.parse_args()
    link = Link(megabits=args.megabits, delay_ms=args.delay_ms, queue_bytes=int(args.megabits * 125 * args.queue_ms))
    where = harness.machine()
    rows = [measure(link, control, args) for _ in range(args.blocks) for control in args.control]
    harness.report(args, "fair_share", METHOD, where, rows, [])


if __name__ == "__main__":
    harness.main(run)
