"""Bytes from strangers, silence, and stopped peers, while a run goes on."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from actors import PATIENCE, Actor, Ops, Pause, Reduce, all_follow, cast, check_agreement, contributors, losses, troupe
from frame_numbers import TYPES, VERSION, hello_body

import pccl

WELCOME = TYPES["WELCOME"]
REDUCES = [Reduce(10), Reduce(300_000), Reduce(20_000)]


def header(kind: int, length: int, magic: bytes = b"PC") -> bytes:
    return struct.pack("<I2sHQQQ", length, magic, kind, 0, 0, 0)


def hello(version: int = VERSION, port: int = 1) -> bytes:
    body = hello_body(os.urandom(16), port, version)
    return header(1, len(body)) + body


def lying_link_hello(rng: random.Random) -> bytes:
    """Right in form, with a secret that is none."""
    body = struct.pack("<HB16s16s16sI", VERSION, 1, rng.randbytes(16), rng.randbytes(16), rng.randbytes(16), 0)
    return header(64, len(body)) + body


def payloads(rng: random.Random) -> list[bytes]:
    return [
        b"\0" * 8,
        b"\0" * 5000,
        b"\xff" * 5000,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        rng.randbytes(1),
        rng.randbytes(31),
        rng.randbytes(100_000),
        header(1, 0xFFFFFFFF),
        header(1, 1 << 30) + rng.randbytes(5000),
        header(65535, 10) + rng.randbytes(10),
        header(1, 30) + rng.randbytes(30),
        hello()[:40],
        hello(version=999),
        hello()[:32] + rng.randbytes(3000),
        lying_link_hello(rng),
        lying_link_hello(rng)[:50],
        *(
            header(kind, rng.choice([0, 1, 28, 60, 1 << 18, 1 << 20])) + rng.randbytes(200)
            for kind in [*range(1, 20), *range(64, 78)]
        ),
    ]


def send_to(port: int, payload: bytes, in_drops: bool) -> None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for drop in [payload[i : i + 1] for i in range(min(len(payload), 80))] if in_drops else [payload]:
            one.sendall(drop)


def listening_port(pid: int) -> int:
    """Of a peer: the one port it listens on."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}")))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    [port] = [int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]
    return port


def resident_kib(pid: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


@contextlib.contextmanager
def master_process():
    """A master of its own, for its memory to be looked at: its address and its process."""
    code = (
        "import pccl, sys, time\n"
        "master = pccl.MasterNode('127.0.0.1:0')\n"
        "master.run()\n"
        "print(master.port, flush=True)\n"
        "sys.stdin.read()\n"
        "master.interrupt()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(pccl.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}", process
        assert process.poll() is None, "the master has ended"
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()


def test_strangers():
    """To the master's port and to the peers', all kinds; then 200 that say nothing. The run does not notice."""
    rng = random.Random(4)
    with master_process() as (address, master), troupe(address, 3) as actors:
        ports = [int(address.rsplit(":", 1)[1]), *(listening_port(actor.pid) for actor in actors)]
        for actor in actors:
            actor.tell("reduce_on", REDUCES)
        actors[0].await_round()
        before = [resident_kib(pid) for pid in (master.pid, *(actor.pid for actor in actors))]
        for turn in range(2):
            for payload in payloads(rng):
                for port in ports:
                    send_to(port, payload, in_drops=bool(turn))
        silent = []
        try:
            for port in ports:
                for number in range(200):
                    with contextlib.suppress(OSError):
                        silent.append(socket.create_connection(("127.0.0.1", port), timeout=1))
                        silent[-1].sendall(hello()[: number % 40])
            actors[0].await_round()
            actors[0].tell("enough")
            outcomes = [actor.answer() for actor in actors]
            after = [resident_kib(pid) for pid in (master.pid, *(actor.pid for actor in actors))]
        finally:
            for one in silent:
                one.close()
        assert outcomes[0] == outcomes[1] == outcomes[2]
        assert outcomes[0][1] == [7]
        assert after[0] - before[0] < 8 << 10, "the master's memory has grown"
        # a peer's memory has its tensors and scratch too
        assert max(after[1:]) - min(before[1:]) < 64 << 10, "a peer's memory has grown"
        # newcomers still get in
        fresh = Actor(address, 3)
        actors.append(fresh)
        fresh.tell("join", 4)
        for actor in actors[:3]:
            actor.tell("form", 4)
        assert [actor.answer() for actor in actors] == [None] * 4
        logs = all_follow(actors, [Ops("plain", (Reduce(100),))])
        assert {contributors(log)[0] for log in logs.values()} == {15}


STAGES = ["nothing", "half a hello", "hello", "welcome", "no links", "links unanswered"]


@pytest.mark.plain("its newcomers speak the plain protocol")
@pytest.mark.parametrize("stage", STAGES)
def test_newcomers_that_stop_half_way(stage):
    """A newcomer that dies or hangs at each point of its way in is left out; the others' vote succeeds without it."""
    with cast(2, heartbeat_limit=1.0) as (address, actors):
        host, port = address.rsplit(":", 1)
        with socket.socket() as listener, socket.create_connection((host, int(port))) as newcomer:
            listener.bind((host, 0))
            listener.listen()
            mine = hello(port=listener.getsockname()[1])
            if stage == "half a hello":
                newcomer.sendall(mine[:40])
            elif stage != "nothing":
                newcomer.sendall(mine)
            if stage in ("welcome", "no links", "links unanswered"):
                kind = struct.unpack("<I2sH", newcomer.recv(1000)[:8])[2]
                assert kind == WELCOME
            if stage == "no links":
                listener.close()
            if stage not in ("no links", "links unanswered"):
                time.sleep(0.05)
                newcomer.close()
            for _ in range(3):
                for actor in actors:
                    actor.tell("call", "update_topology")
                assert [actor.answer(timeout=10) for actor in actors] == [None] * 2
            logs = all_follow(actors, [Ops("plain", (Reduce(10), Reduce(300_000)))])
        check_agreement(logs)
        assert contributors(logs[0]) == [3, 3]
        assert not losses(logs[0])


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_stopped_peer_is_lost_and_wakes_up_dead(busy):
    with cast(3, heartbeat_limit=1.0) as (_, actors):
        survivors = actors[:2]
        steps = [Ops("plain", (Reduce(10), Reduce(300_000), Reduce(10))), Pause(0.2), Ops("plain", (Reduce(10),) * 2)]
        if busy:
            actors[2].tell("follow", [*steps[:1], Pause(30)])
        else:
            time.sleep(0.1)
            actors[2].signal(signal.SIGSTOP)
        for actor in survivors:
            actor.tell("follow", steps)
        if busy:
            time.sleep(0.1)
            actors[2].signal(signal.SIGSTOP)
        logs = {actor.number: actor.answer() for actor in survivors}
        check_agreement(logs)
        assert len(losses(logs[0])) == 1
        assert contributors(logs[0])[-1] == 3
        actors[2].signal(signal.SIGCONT)
        if not busy:
            end = time.monotonic() + PATIENCE
            while actors[2].ask("alive"):
                assert time.monotonic() < end, "it does not learn that it is out"
                time.sleep(0.01)
            for call in ("update_topology", "are_peers_pending", "optimize_topology"):
                assert actors[2].ask("call", call) == "MASTER_CONNECTION_FAILED"
        assert contributors(all_follow(survivors, [Ops("plain", (Reduce(10), Reduce(300_000)))])[0]) == [3, 3]


def test_a_peer_that_returns_harms_nobody():
    """It crashes, and comes back at the same address and (as the first free one) the same port, again and again."""
    with cast(3) as (address, actors):
        for turn in range(4):
            actors.pop().kill()
            fresh = Actor(address, 2)
            actors.append(fresh)
            fresh.tell("join", 3)
            # the others meet it before or after the error that tells of its death
            steps = [Ops("plain", (Reduce(1000),))] if turn % 2 else []
            logs = all_follow(actors[:2], steps)
            check_agreement(logs)
            assert len(losses(logs[0])) == turn % 2
            for actor in actors[:2]:
                actor.tell("form", 3)
            assert [actor.answer() for actor in actors] == [None] * 3
            logs = all_follow(actors, [Ops("plain", (Reduce(10), Reduce(300_000)))])
            check_agreement(logs)
            assert contributors(logs[0]) == [7, 7]


def cpu_seconds(pid: int) -> float:
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


@pytest.mark.parametrize("what", ["large op", "small op", "vote", "nothing"])
def test_waiting_costs_next_to_nothing(what):
    with cast(3) as (_, actors):
        for actor in actors[:2]:
            if what == "vote":
                actor.tell("call", "update_topology")
            elif what != "nothing":
                actor.tell("follow", [Ops("plain", (Reduce(300_000 if what == "large op" else 10),))])
        end = time.monotonic() + PATIENCE
        used = [1.0]
        while max(used) >= 0.02:  # they may still be on their way to where they wait
            assert time.monotonic() < end, used
            begin, before = time.monotonic(), [cpu_seconds(actor.pid) for actor in actors]
            time.sleep(1.0)
            took = time.monotonic() - begin
            used = [(cpu_seconds(actor.pid) - was) / took for actor, was in zip(actors, before, strict=True)]
