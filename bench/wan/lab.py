"""Two network namespaces joined by an emulated long link. Needs root.

Without --check it keeps them until Ctrl-C, for programs of your own; with --check it measures plain TCP over them.
"""

from __future__ import annotations

import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness
from harness import KIB, MIB, Peer, Row
from netlab import Lab, Link

from pccl.lab.ports import free_ports

PIECE = 256 * KIB

METHOD = """TCP one way between two namespaces over the emulated link, congestion control set on every socket; bytes that
arrived in the measured time after the warm-up, headers not counted."""


def check(peer: Peer, host: str, port: int, connections: int, control: str, warm_up: float, seconds: float) -> float:
    """Rank 0 receives and gives Mbit/s; rank 1 sends."""
    poll = select.poll()
    if peer.rank == 0:
        with socket.create_server((host, port), backlog=connections) as listener:
            peer.barrier.wait()
            sockets = [listener.accept()[0] for _ in range(connections)]
        rate = receive(poll, sockets, warm_up, seconds)
        peer.barrier.wait()
        return rate
    peer.barrier.wait()
    sockets = []
    for _ in range(connections):
        made = socket.socket()
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        made.connect((host, port))
        sockets.append(made)
    send(poll, sockets, warm_up + seconds + 1)
    peer.barrier.wait()
    return 0.0


def ready(poll: Any, sockets: list[socket.socket], event: int, until: float) -> Any:
    """The sockets that can go on, until that moment."""
    by_number = {made.fileno(): made for made in sockets}
    for made in sockets:
        made.setblocking(False)
        poll.register(made, event)
    while (left := until - time.monotonic()) > 0:
        for number, _ in poll.poll(left * 1e3):
            yield by_number[number]


def receive(poll: Any, sockets: list[socket.socket], warm_up: float, seconds: float) -> float:
    scratch = memoryview(bytearray(MIB))
    start = time.monotonic() + warm_up
    arrived = 0
    for one in ready(poll, sockets, select.POLLIN, start + seconds):
        got = one.recv_into(scratch)
        arrived += got if time.monotonic() >= start else 0
    return arrived * 8 / seconds / 1e6


def send(poll: Any, sockets: list[socket.socket], seconds: float) -> None:
    data = bytes(PIECE)
    try:
        for one in ready(poll, sockets, select.POLLOUT, time.monotonic() + seconds):
            one.send(data)
    except ConnectionError:
        return  # the receiver has seen enough


def run() -> None:
    parser = harness.parser(__doc__, blocks=1)
    parser.add_argument("--megabits", type=float, default=1000, help="rate each way; 0 is unlimited")
    parser.add_argument("--delay-ms", type=float, default=40, help="one way")
    parser.add_argument("--loss", type=float, default=0.0, help="probability per packet")
    parser.add_argument("--queue", type=int, default=0, metavar="BYTES", help="0 is one bandwidth-delay product")
    parser.add_argument(
        "--buffers", type=int, default=0, metavar="BYTES", help="the largest TCP buffers; 0 is the kernel's default"
    )
    parser.add_argument("--exact", action="store_true", help="deliver each packet when it is due, not in ticks")
    parser.add_argument("--seed", type=int, default=1, help="of the losses")
    parser.add_argument("--check", action="store_true", help="measure TCP and end")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4, 16], help="measured by --check")
    parser.add_argument("--control", nargs="+", default=["cubic", "bbr"], help="congestion controls measured by --check")
    parser.add_argument("--warm-up", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time")
    args = parser.parse_args()
    link = Link(megabits=args.megabits, delay_ms=args.delay_ms, loss=args.loss, queue_bytes=args.queue, exact=args.exact)
    with Lab() as lab:
        places = lab.long_pair(link, args.seed)
        for place in places if args.buffers else ():
            lab.sysctl(place, "net.ipv4.tcp_rmem", f"4096 131072 {args.buffers}")
            lab.sysctl(place, "net.ipv4.tcp_wmem", f"4096 16384 {args.buffers}")
        if args.check:
            rows = []
            for control in args.control:
                for connections in args.connections:
                    shape = {"warm_up": args.warm_up, "seconds": args.seconds, "connections": connections, "control": control}
                    with harness.Fleet(
                        check,
                        2,
                        namespaces=[place.namespace for place in places],
                        host=places[0].address,
                        port=free_ports(1)[0],
                        **shape,
                    ) as fleet:
                        row: Row = {"control": control, "connections": connections, "Mbit/s": fleet.results()[0]}
                    rows.append(row)
            harness.report(args, "longlink", METHOD, {"link": str(link)}, rows, [])
        else:
            for place in places:
                print(f"{place.address}: ip netns exec {place.namespace} PROGRAM")
            print("Ctrl-C removes both", flush=True)
            ends = {signal.SIGINT, signal.SIGTERM}
            signal.pthread_sigmask(signal.SIG_BLOCK, ends)
            signal.sigwait(ends)
        print(lab.close(), end="", file=sys.stderr)


if __name__ == "__main__":
    harness.main(run)
