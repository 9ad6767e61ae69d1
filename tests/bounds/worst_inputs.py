"""Backs "Work per input" of docs/threat-model.md: how long the worst inputs keep others waiting, and the memory they take.

Two tables: LISTENERS has a row for each input of each listener or thread that serves more than one party, PARSERS one for
each parser. A new listener or parser gets its rows here (CONTRIBUTING.md, "Work per input is bounded"). Each listener runs in
a process of its own. A prober of another run asks again as soon as it is answered. Its longest wait while the input comes,
and for half a second after it, is the pause; "quiet" is its longest wait in the half second before. The sender has made its
bytes before. Memory is the growth of the peak of the listener's process (VmHWM). Each parser gets its input in a process of
its own: its time, and the growth of the peak of that process. Bars: 50 ms, and 8 x the size of an input of 1 MiB, beside 32
KiB for each connection and 1 MiB for each run, whose numbers are limited.
"""

from __future__ import annotations

import argparse
import gc
import http.client
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import harness
from frame_numbers import HEADER, TYPES, hello_body
from harness import KIB, MIB, Report, Row
from worst_trees import TREES, make_tree, message

from pccl._run import keys as _keys

PAUSE_MS = 50.0
MEMORY = 8.0
CONNECTION, RUN = 32 * KIB, MIB
QUIET_S = 0.5
WARM = 50
LIMIT_S = 60.0

Fire = Callable[[], int]
"""Sends what was prepared, and returns how many bytes it sent."""


@dataclass(frozen=True)
class Place:
    """Where a listener is, and the peers' keys of its run."""

    address: str
    keys: str | None = None

    def dial(self) -> socket.socket:
        host, port = self.address.rsplit(":", 1)
        stream = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream


@dataclass(frozen=True)
class Opened:
    """A listener that was opened: its process, and a call of another party that it has to answer."""

    process: int
    place: Place
    probe: Callable[[], object]


@dataclass(frozen=True)
class Listener:
    """`prepare` makes an input of about so many bytes, in a process of its own, and returns what sends it."""

    name: str
    open: Callable[[ExitStack], Opened]
    prepare: Callable[[Place, int], Fire]
    beside: int = 0  # bytes that its connections and runs may take, whose number is limited


@dataclass(frozen=True)
class Parser:
    """`make` returns an input of so many bytes, and `parse` reads it, in a process of its own. Its errors are answers, too."""

    name: str
    make: Callable[[int], bytes]
    parse: Callable[[bytes], object]
    alone: bool = False
    """A command reads it before it serves anybody, so that its time is no pause."""


# ---- listeners ----


def master(stack: ExitStack, with_keys: bool = False) -> Opened:
    """A master, and a member alone in a run of its own, which asks whether somebody waits."""
    import pccl

    files = None
    if with_keys:
        files = _keys.write_files(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run", _keys.new_keys())
    served = stack.enter_context(harness.Master(keys=files[0] if files else None))
    peers = str(files[1]) if files else None
    member = stack.enter_context(pccl.Communicator(f"{served.address}/probe", keys=peers))
    member.connect()
    return Opened(served.pid, Place(served.address, peers), member.are_peers_pending)


def native(kind: str, place: Place, size: int) -> Fire:
    """What bench/worst_inputs.c makes."""
    host, port = place.address.rsplit(":", 1)
    command = [str(harness.ROOT / "build" / "bench" / "worst_inputs"), str(place.keys), host, port, kind, str(size)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    ask, answer = process.stdin, process.stdout
    if answer.readline() != "ready\n":
        raise harness.BenchError("tests/bounds/worst_inputs.c could not make its input; its words stand above")

    def fire() -> int:
        print(file=ask, flush=True)
        return int(answer.readline())

    return fire


def frame(kind: str, body: bytes = b"", names: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    return HEADER.pack(len(body), b"PC", TYPES[kind], *names) + body


def pour(streams: list[socket.socket], pieces: list[bytes]) -> Fire:
    """One piece on each connection, as far as the other side takes it."""

    def fire() -> int:
        sent = 0
        for stream, piece in zip(streams, pieces, strict=True):
            try:
                stream.sendall(piece)
                sent += len(piece)
            except OSError:  # it was closed
                continue
        return sent

    return fire


PAGE = """
from pccl.monitor.history import Log
from pccl.monitor.server import Page
page = Page(("127.0.0.1", 0), Log(), lambda: (b"", "text/plain"), "token")
print(page.server_address[1], flush=True)
page.serve_forever()
"""


def page(stack: ExitStack) -> Opened:
    """The page of a run, whose owner asks for metrics."""
    process = stack.enter_context(subprocess.Popen([sys.executable, "-c", PAGE], stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    assert process.stdout is not None
    port = int(process.stdout.readline())

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", "/metrics", headers={"Authorization": "Bearer token"})
        if connection.getresponse().status != 200:
            raise harness.BenchError("the owner of the page was refused")
        connection.close()

    return Opened(process.pid, Place(f"127.0.0.1:{port}"), ask)


def requests(head: bytes, item: bytes, connections: int, place: Place, size: int) -> Fire:
    """A request on each of so many connections: its beginning, and items in all of `size` bytes."""
    streams = [place.dial() for _ in range(connections)]
    piece = head + item * max(1, (size // connections - len(head)) // len(item))

    def fire() -> int:
        for stream in streams:
            with suppress(OSError):  # it was closed
                stream.sendall(piece)
        return len(piece) * connections

    return fire


def hello(number: int) -> bytes:
    return frame("HELLO", hello_body(number.to_bytes(16, "little")))


def strangers(content: Callable[[int], bytes], place: Place, size: int) -> Fire:
    """Connections with one question or hello each."""
    pieces = [content(number) for number in range(1, CONNECTIONS + 1)]
    while sum(map(len, pieces)) > size:
        pieces.pop()
    return pour([place.dial() for _ in pieces], pieces)


def question(number: int) -> bytes:
    return frame("DIAGNOSE")


def nonsense(number: int) -> bytes:
    return b"\xff" * 1100


def in_a_run(number: int) -> bytes:
    name = f"run-{number}".encode()
    return frame("RUN", bytes([len(name)]) + name) + hello(number)


def member(kind: str, body: bytes, place: Place, size: int) -> Fire:
    """Frames of a member that is alone in its run."""
    stream = place.dial()
    stream.sendall(frame("RUN", b"\x05flood") + hello(1))
    while True:
        length, _, found, *names = HEADER.unpack(read(stream, HEADER.size))
        read(stream, length)
        if found == TYPES["EPOCH"]:
            break
    one = frame(kind, body, (names[0], names[1], names[2]))
    return pour([stream], [one * (size // len(one))])


def read(stream: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        more = stream.recv(length - len(content))
        if not more:
            raise harness.BenchError("the listener closed a connection of the sender")
        content += more
    return content


def relay(stack: ExitStack) -> Opened:
    """A relay, and a link through it that carries a byte to and fro."""
    command = [sys.executable, "-P", "-m", "pccl.cli", "relay", "127.0.0.1:0", "--insecure"]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    assert process.stdout is not None
    place = Place(f"127.0.0.1:{int(process.stdout.readline().rsplit(':', 1)[1])}")
    ends = [stack.enter_context(place.dial()) for _ in range(2)]
    for end, name in zip(ends, (relay_hello(1, 2), relay_hello(2, 1)), strict=True):
        read(end, RELAY_GREETING)
        end.sendall(name)
    for end in ends:
        read(end, 1)

    def probe() -> None:
        for one, other in (ends, reversed(ends)):
            one.sendall(b"x")
            read(other, 1)

    return Opened(process.pid, place, probe)


def relay_hello(own: int, other: int) -> bytes:
    return f"{own:032x} {other:032x} 00000000 {0:064x} {0:064x} 0000\n".encode()


def relayed(place: Place, size: int) -> Fire:
    """Hellos of ends whose other end does not come."""
    streams = [place.dial() for _ in range(RELAY_CONNECTIONS)]
    for stream in streams:
        read(stream, RELAY_GREETING)
    return pour(streams, [relay_hello(number, number + 1000) for number in range(1, len(streams) + 1)])


def peers(stack: ExitStack) -> Opened:
    """Two peers of one host that reduce a small array; the second one is the listener."""
    import numpy as np

    import pccl

    served = stack.enter_context(harness.Master())
    process, _ = child(reduce, served.address)
    stack.callback(process.kill)
    comm = stack.enter_context(pccl.Communicator(served.address))
    comm.connect()
    comm.wait_for_peers(2)
    given, got = np.ones(MIB, np.float32), np.empty(MIB, np.float32)
    ports = listening(process.pid)
    return Opened(process.pid, Place(f"127.0.0.1:{ports[0]}"), lambda: comm.all_reduce(given, got))


def reduce(pipe: Connection, address: str) -> None:
    import numpy as np

    import pccl

    with pccl.Communicator(address) as comm:
        comm.connect()
        comm.wait_for_peers(2)
        given, got = np.ones(MIB, np.float32), np.empty(MIB, np.float32)
        while True:
            comm.all_reduce(given, got)


def listening(process: int) -> list[int]:
    """TCP ports at which a process listens."""
    sockets = {link.readlink().name for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()}
    ports = []
    for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            ports.append(int(fields[1].split(":")[1], 16))
    return ports


def other_user(place: Place, size: int) -> Fire:
    """Connections of another user to the sockets for same-host memory, as many as make up the size at 64 bytes each."""
    names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if " @pccl-" in line}
    names = {name for name in names if "master" not in name}
    os.setuid(65534)

    def fire() -> int:
        made, until = 0, time.perf_counter() + 5
        while made < size // 64 and time.perf_counter() < until:
            for name in names:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
                    stream.setblocking(False)
                    made += stream.connect_ex("\0" + name[1:]) == 0
        return 64 * made

    return fire


CONNECTIONS = 900
RUNS = 64
RELAY_CONNECTIONS = 200
RELAY_GREETING = 46

with_keys = partial(master, with_keys=True)
LISTENERS = [
    Listener("page: connections that go no further", page, partial(requests, b"GET / HTTP/1.1\r\nX: ", b"x", 128)),
    Listener("page: a long header", page, partial(requests, b"GET / HTTP/1.1\r\nX: ", b"x", 1)),
    Listener("page: many headers", page, partial(requests, b"GET / HTTP/1.1\r\n", b"X:\r\n", 8)),
    Listener("page: cookies", page, partial(requests, b'GET / HTTP/1.1\r\nCookie: a="', b"\\101", 16)),
    Listener("page: requests without the token", page, partial(requests, b"", b"GET / HTTP/1.1\r\n\r\n", 64)),
    Listener("master, keys: KeyUpdates", with_keys, partial(native, "updates")),
    Listener("master, keys: KeyUpdates that want an answer", with_keys, partial(native, "asked")),
    Listener("master, keys: records of a byte", with_keys, partial(native, "bytes")),
    Listener("master, keys: beginnings of handshakes", with_keys, partial(native, "hellos"), CONNECTIONS * CONNECTION),
    Listener("master: questions", master, partial(strangers, question), CONNECTIONS * CONNECTION),
    Listener("master: hellos in new runs", master, partial(strangers, in_a_run), CONNECTIONS * CONNECTION + RUNS * RUN),
    Listener("master: heartbeats of a member", master, partial(member, "HEARTBEAT", b"")),
    Listener("master: votes of a member", master, partial(member, "VOTE", b"\x02")),
    Listener("relay: hellos", relay, relayed, RELAY_CONNECTIONS * CONNECTION),
    Listener("links: nonsense", peers, partial(strangers, nonsense), CONNECTIONS * CONNECTION),
    *([Listener("same-host memory: connections of another user", peers, other_user)] if os.geteuid() == 0 else []),
]

# ---- parsers ----


def made(module: str, make: Callable[[int], bytes], size: int) -> bytes:
    """Imports the parser first: its time is none of the input's."""
    importlib.import_module(module)
    return make(size)


def call(module: str, function: str, content: bytes) -> object:
    return getattr(importlib.import_module(module), function)(content)


PARSERS: list[Parser] = [
    Parser(f"tree: {name}", partial(made, "pccl.state", partial(make_tree, name)), partial(call, "pccl.state", "decode"))
    for name in TREES
]


def layout(size: int) -> bytes:
    """Of as many members as a message may have."""
    return message({"hosts": [""] * (size // 100), "maps": [{"dict": []}] * (size // 100), "redundancy": [1, 0]}, size=size)


def read_events(content: bytes) -> int:
    from pccl.monitor.history import Log, read_file

    log = Log(most_bytes=1 << 40)
    log.add(read_file(file_of(content)))
    return log.after(0, 0)[1]


def read_layout(content: bytes) -> object:
    from pccl.state._snapshots.snapshot import Layout

    return Layout.decoded(content)


def read_keys(content: bytes) -> object:
    return _keys.read_file(file_of(content))


def read_place(content: bytes) -> object:
    from pccl.distributed._board import _read

    return _read(content.decode())


def file_of(content: bytes) -> str:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(content)
    return file.name


def lines(line: bytes, size: int) -> bytes:
    return b'{"kind":"pccl-events","format":1}\n' + line * (size // len(line))


def one_line(size: int) -> bytes:
    return lines(b"[" * size, size)


def nested(size: int) -> bytes:
    return b"[" * size


EVENT = b'{"at":0,"kind":"","a":[%s9]}\n'
PARSERS += [
    Parser("layout: many members", partial(made, "pccl.state._snapshots.snapshot", layout), read_layout),
    Parser(
        "events: short lines", partial(made, "pccl.monitor.history", partial(lines, b'{"at":0,"kind":""}\n')), read_events, True
    ),
    Parser(
        "events: many lists", partial(made, "pccl.monitor.history", partial(lines, EVENT % (b"[]," * 40_000))), read_events, True
    ),
    Parser(
        "events: large numbers",
        partial(made, "pccl.monitor.history", partial(lines, EVENT % (b"9e15," * 20_000))),
        read_events,
        True,
    ),
    Parser("events: one line", partial(made, "pccl.monitor.history", one_line), read_events, True),
    Parser("keys: a long file", partial(lines, b"#\n"), read_keys),
    Parser("place of a rank: nested lists", partial(made, "pccl.distributed._board", nested), read_place),
]

# ---- measuring ----


def status(process: int | str, key: str) -> int:
    """Bytes."""
    line = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def send(pipe: Connection, prepare: Callable[[Place, int], Fire], place: Place, size: int) -> None:
    fire = prepare(place, size)
    pipe.send(0)
    pipe.recv()
    pipe.send(fire())
    pipe.recv()  # until then what it has opened stays


def parse(pipe: Connection, one: Parser, size: int) -> None:
    content = one.make(size)
    gc.collect()  # else the first of all objects of torch falls into some of the inputs
    Path("/proc/self/clear_refs").write_text("5")
    before, began = status("self", "VmRSS"), time.perf_counter()
    try:
        one.parse(content)
        told = "read"
    except Exception as error:
        told = type(error).__name__
    pipe.send((len(content), time.perf_counter() - began, status("self", "VmHWM") - before, told))


def child(target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    ours, its = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=target, args=(its, *arguments), daemon=True)
    process.start()
    its.close()
    return process, ours


def answer(pipe: Connection, name: str) -> Any:
    if not pipe.poll(LIMIT_S):
        raise harness.BenchError(f"{name}: no result after {LIMIT_S:.0f} s")
    return pipe.recv()


class Prober:
    """Asks again and again; `longest` is the longest wait in seconds since `mark`."""

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe = probe
        self._ends = threading.Event()
        self._marked = time.perf_counter()
        self._longest = 0.0
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._ends.is_set():
            began = time.perf_counter()
            self._probe()
            ended = time.perf_counter()
            self._longest = max(self._longest, ended - max(began, self._marked))

    def mark(self) -> float:
        longest, self._longest, self._marked = self._longest, 0.0, time.perf_counter()
        return longest

    def end(self) -> float:
        self._ends.set()
        self._thread.join()
        return self._longest


def measure_listener(one: Listener, size: int) -> Row:
    with ExitStack() as stack:
        opened = one.open(stack)
        for _ in range(WARM):
            opened.probe()
        before = status(opened.process, "VmRSS")
        process, pipe = child(send, one.prepare, opened.place, size)
        stack.callback(process.terminate)
        answer(pipe, one.name)
        prober = Prober(opened.probe)
        try:
            time.sleep(QUIET_S)
            quiet = prober.mark()
            pipe.send(0)
            sent = answer(pipe, one.name)
            time.sleep(QUIET_S)
            grown = status(opened.process, "VmHWM") - before
        finally:
            pause = prober.end()
    return row(one.name, sent, pause, grown, quiet)


def measure_parser(one: Parser, size: int) -> Row:
    process, pipe = child(parse, one, size)
    with ExitStack() as stack:
        stack.callback(process.terminate)
        length, seconds, grown, told = answer(pipe, one.name)
    return row(one.name, length, seconds, grown) | {"answer": told}


def row(name: str, size: int, pause: float, grown: int, quiet: float | None = None) -> Row:
    made: Row = {"input": name, "KiB": size // 1024, "pause ms": pause * 1000, "memory MiB": grown / MIB}
    return made if quiet is None else made | {"quiet ms": quiet * 1000}


def body(args: argparse.Namespace) -> Report:
    size = 16 * KIB if args.quick else args.size
    harness.build("worst_inputs")
    rows = [measure_listener(one, size) for one in LISTENERS if any(text in one.name for text in args.only)]
    rows += [measure_parser(one, size) for one in PARSERS if any(text in one.name for text in args.only)]
    figures, alone = [], {one.name for one in PARSERS if one.alone}
    beside = {one.name: one.beside / MIB for one in LISTENERS}
    for made in rows:
        allowed = MEMORY * max(made["KiB"], 1024) / 1024 + beside.get(made["input"], 0)
        reached = (made["pause ms"] <= PAUSE_MS or made["input"] in alone) and made["memory MiB"] <= allowed
        measured = f"{made['pause ms']:.0f} ms, {made['memory MiB']:.1f} MiB"
        figures.append(harness.figure(made["input"], measured, f"{PAUSE_MS:.0f} ms, {allowed:.0f} MiB", reached))
    return Report(figures, rows)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=MIB, metavar="BYTES", help="bytes of an input [1 MiB]")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows with one of these texts in their names")


if __name__ == "__main__":
    harness.measure(body, options=options)
