"""The master is killed with SIGKILL at random points of random scripts, and started again: no peer notices more than a delay.

MASTER_LOSS_SEED=17 plays one seed alone; MASTER_LOSS_TRIALS=1000 plays so many (20 unless told), from MASTER_LOSS_FIRST on.
A seed fixes the script, who joins, and when the master dies; each trial has one to three deaths.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from actors import (
    PATIENCE,
    Actor,
    Meet,
    Ops,
    Pause,
    Reduce,
    Sync,
    Vote,
    all_follow,
    check_agreement,
    losses,
    troupe,
)
from performers import MasterProcess

from pccl import Communicator, PCCLError, SharedState, TensorInfo
from pccl._peer.shared_state import sync_report
from pccl.lab.ports import free_ports

BATCH = 5

ONE = os.environ.get("MASTER_LOSS_SEED")
FIRST = int(ONE or os.environ.get("MASTER_LOSS_FIRST", "0"))
TRIALS = 1 if ONE else int(os.environ.get("MASTER_LOSS_TRIALS", "20"))

LIMIT = 5.0
"""Of silence, in seconds."""


def random_reduce(rng: random.Random) -> Reduce:
    count = rng.choice([1, 7, 1000, 16_384, 100_000, 300_000, 2_000_000])
    return Reduce(count, rng.choice(["int64", "int32", "float64"]), rng.random() < 0.6)


def random_step(rng: random.Random, count: int, votes: list[str]) -> Ops | Vote | Pause | Sync:
    pick = rng.random()
    if pick < 0.1:
        return Pause(rng.random() * 0.03)
    if pick < 0.35:
        return Vote(rng.choice(votes), rng.random() * 0.02)
    if pick < 0.55:
        return Sync(rng.choice([1000, 1 << 20, 8 << 20]), rng.randrange(1 << count) if rng.random() < 0.7 else 0)
    way = rng.choice(["plain", "async", "async", "multi"])
    return Ops(way, tuple(random_reduce(rng) for _ in range(rng.randint(1, 5))), rng.randint(1, 6))


class Reaper(threading.Thread):
    """Kills the master at given moments and starts it again, each time after a pause."""

    def __init__(self, master: MasterProcess, deaths: list[tuple[float, float]]) -> None:
        super().__init__(daemon=True)
        self._master = master
        self._deaths = deaths
        self.kills: list[tuple[float, float]] = []
        """When it was killed, and when the next one listened; time.monotonic()."""

    def run(self) -> None:
        for alive, dead in self._deaths:
            time.sleep(alive)
            killed = time.monotonic()
            self._master.kill()
            time.sleep(dead)
            self._master.start()
            self.kills.append((killed, time.monotonic()))


def waits(kills: list[tuple[float, float]], ends: list[list[float]]) -> list[float]:
    """For each kill: until the slowest peer had ended a call after the next master listened, if all of them made one."""
    found = []
    for killed, listens in kills:
        after = [next((end for end in mine if end > listens), None) for mine in ends]
        found += [max(end for end in after if end is not None) - killed] if None not in after else []
    return found


def play(seed: int) -> tuple[int, list[float]]:
    """How often the master was killed, and how long the peers waited each time."""
    rng = random.Random(seed)
    count = rng.choice([2, 3, 3, 4])
    fresh_count = rng.choice([0, 0, 1])
    # a newcomer asks where the script is as soon as it is in, so only a Meet may let one in
    votes = ["are_peers_pending"] if fresh_count else ["are_peers_pending", "update_topology", "optimize_topology"]
    steps = [random_step(rng, count, votes) for _ in range(rng.randint(6, 14))]
    if fresh_count:
        for _ in range(2):
            steps.insert(rng.randint(1, len(steps)), Meet(0.01))
    steps.append(Ops("plain", (Reduce(10), random_reduce(rng))))
    deaths = [(rng.random() ** 2 * 0.3, rng.choice([0.0, rng.random() * 0.1])) for _ in range(rng.choice([1, 1, 2, 3]))]
    environment = {"PCCL_SAME_HOST_MEMORY": rng.choice("01")}
    with MasterProcess(heartbeat_limit=LIMIT) as master, troupe(master.address, count, environment=environment) as actors:
        for number in range(count, count + fresh_count):
            fresh = Actor(master.address, number, 0, 0, environment)
            actors.append(fresh)
            fresh.ask("ready")
            fresh.tell("join_late", steps, None, rng.random() * 0.1, None)
        reaper = Reaper(master, deaths)
        reaper.start()
        for actor in actors[:count]:
            actor.tell("follow", steps)
        logs = {actor.number: actor.answer() for actor in actors[:count]}
        reaper.join()
        for fresh in actors[count:]:
            if fresh.waits_in_connect():
                continue
            answer = fresh.answer()
            if answer != [(-1, "alone")]:  # in a run of its own, begun at a master that none of the others had come back to yet
                logs[fresh.number] = answer
        check_agreement(logs)
        assert not any(losses(log) for log in logs.values()), "a peer was lost with the master"
        return len(reaper.kills), waits(reaper.kills, [actor.ask("ends") for actor in actors[:count]])


@pytest.mark.timeout(8 * PATIENCE)
@pytest.mark.parametrize("first", range(FIRST, FIRST + TRIALS, BATCH))
def test_kills(first, record_property):
    for seed in range(first, min(first + BATCH, FIRST + TRIALS)):
        begin = time.monotonic()
        try:
            kills, waited = play(seed)
        except BaseException:
            print(f"replay with MASTER_LOSS_SEED={seed}")
            raise
        assert time.monotonic() - begin < PATIENCE, f"seed {seed} hung somewhere"
        record_property("master kills", kills)  # conftest.py sums them up
        record_property("seconds to the next success", waited)


def test_a_peer_dies_with_the_master():
    """More than half are left: they go on after the heartbeat limit, without the dead one."""
    with MasterProcess(heartbeat_limit=1.0) as master, troupe(master.address, 3) as actors:
        master.kill()
        actors[2].kill()
        for actor in actors[:2]:
            actor.tell("follow", [Ops("plain", (Reduce(300_000), Reduce(10)))])
        master.start()
        logs = {actor.number: actor.answer() for actor in actors[:2]}
        check_agreement(logs)
        assert all(len(losses(log)) == 1 for log in logs.values())


def test_a_minority_waits():
    """One of three does not go on, however long the master is back; with the second it does."""
    with MasterProcess(heartbeat_limit=1.0) as master, troupe(master.address, 3) as actors:
        actors[1].signal(signal.SIGSTOP)
        actors[2].kill()
        master.kill()
        for actor in actors[:2]:
            actor.tell("follow", [Ops("plain", (Reduce(300_000),))])
        master.start()
        with pytest.raises(TimeoutError):
            actors[0].answer(timeout=3.0)
        actors[1].signal(signal.SIGCONT)
        logs = {actor.number: actor.answer() for actor in actors[:2]}
        check_agreement(logs)
        assert all(len(losses(log)) == 1 for log in logs.values())


def test_the_next_master_knows_whose_entries_differ():
    """Two have voted when the master dies. The next one has their lists from them, and tells the odd one which entry it is."""

    def enter(comm: Communicator) -> None:
        comm.connect()
        comm.wait_for_peers(3, timeout=PATIENCE)

    def sync(comm: Communicator, *names: str) -> int:
        state = SharedState([TensorInfo.from_numpy(np.ones(3, np.float32), name) for name in names])
        return comm.sync_shared_state(state, timeout=PATIENCE).rx_bytes

    def has_voted(comm: Communicator) -> bool:
        report = sync_report(comm._handle)
        return report.seconds > 0 and not report.hashing

    with (
        MasterProcess() as master,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(3) as pool,
    ):
        comms = [stack.enter_context(Communicator(master.address)) for _ in range(3)]
        list(pool.map(enter, comms))
        syncs = [pool.submit(sync, comms[0], "a", "x", "c"), pool.submit(sync, comms[1], "a", "b", "c")]
        while not all(map(has_voted, comms[:2])):
            time.sleep(0.001)
        master.kill()
        master.start()
        assert sync(comms[2], "a", "b", "c") == 0
        assert syncs[1].result(PATIENCE) == 0
        error = syncs[0].exception(PATIENCE)
        assert isinstance(error, PCCLError)
        assert 'the first that differs is entry 1, counted from 0: here "x" (float32, count 3)' in error.detail


def test_an_older_run_beats_a_young_one():
    """A newcomer founds a run at the restarted master before the survivors have woken up; these go on, it has to come again."""
    with MasterProcess(heartbeat_limit=2.0) as master, troupe(master.address, 3) as actors:
        for actor in actors:
            actor.signal(signal.SIGSTOP)
            actor.tell("follow", [Vote("are_peers_pending"), Ops("plain", (Reduce(300_000),)), Sync(1 << 20, 1)])
        master.kill()
        fresh = Actor(master.address, 3)
        actors.append(fresh)
        fresh.ask("ready")
        fresh.tell("insist", 4)
        master.start()
        end = time.monotonic() + PATIENCE
        while fresh.waits_in_connect():
            assert time.monotonic() < end, "there is no young run"
            time.sleep(0.01)
        for actor in actors[:3]:
            actor.signal(signal.SIGCONT)
        logs = {actor.number: actor.answer() for actor in actors[:3]}
        check_agreement(logs)
        assert not any(losses(log) for log in logs.values())
        for actor in actors[:3]:
            actor.tell("form", 4)
        *members, times = [actor.answer() for actor in actors]
        assert members == [None] * 3
        assert times >= 2
        follow_unharmed(actors, lambda: None)


def test_a_young_run_stays_where_a_minority_comes():
    """One survivor of three waits; the young run goes on, and no longer gives way after ten seconds."""
    with MasterProcess(heartbeat_limit=2.0) as master, troupe(master.address, 3) as actors:
        actors[0].signal(signal.SIGSTOP)
        actors[0].tell("call", "update_topology")
        master.kill()
        for actor in actors[1:]:
            actor.kill()
        young = [Actor(master.address, number) for number in (3, 4)]
        actors += young
        for actor in young:
            actor.ask("ready")
            actor.tell("insist", 2)
        master.start()
        assert all(actor.answer() >= 1 for actor in young)
        actors[0].signal(signal.SIGCONT)
        with pytest.raises(TimeoutError):
            actors[0].answer(timeout=2.0)
        follow_unharmed(young, lambda: None)
        assert actors[0].answer() == "MASTER_CONNECTION_FAILED"
        follow_unharmed(young, lambda: None)


def test_the_wait_has_an_end():
    """No master comes: the recovery limit makes the communicator a dead one."""
    with MasterProcess() as master, troupe(master.address, 2, environment={"PCCL_MASTER_RECOVERY_MS": "700"}) as actors:
        begin = time.monotonic()
        master.kill()
        for actor in actors:
            actor.tell("call", "update_topology")
        assert [actor.answer() for actor in actors] == ["MASTER_CONNECTION_FAILED"] * 2
        assert time.monotonic() - begin > 0.65


# ---- a list of masters ----


@contextlib.contextmanager
def two_masters(count: int, heartbeat_limit: float = 1.5):
    """The first and its standby, and accepted peers that know both."""
    masters = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(MasterProcess(address, heartbeat_limit=heartbeat_limit, masters=masters))
            for address in masters.split(",")
        ]
        yield masters, both, stack.enter_context(troupe(masters, count))


WORK = [
    Pause(0.2),
    Ops("plain", (Reduce(300_000), Reduce(10))),
    Sync(1 << 20, 1),
    Vote("are_peers_pending"),
    Ops("async", (Reduce(10),) * 3),
]


def follow_unharmed(actors: list[Actor], during) -> None:
    for actor in actors:
        actor.tell("follow", WORK)
    during()
    logs = {actor.number: actor.answer() for actor in actors}
    check_agreement(logs)
    assert not any(losses(log) for log in logs.values())


def test_a_standby_takes_over():
    """Unaided; newcomers find it, also when the first master is back and has no run."""
    with two_masters(3) as (masters, (first, _), actors):
        follow_unharmed(actors, first.kill)
        for back in (False, True):
            if back:
                first.start()
            fresh = Actor(masters, len(actors))
            actors.append(fresh)
            fresh.tell("join", len(actors))
            for actor in actors[:-1]:
                actor.tell("form", len(actors))
            assert [actor.answer() for actor in actors] == [None] * len(actors)
            follow_unharmed(actors, lambda: None)


def test_who_was_away_when_a_standby_took_over_hears_of_it():
    """Though it comes to the first master, which is back: no second run begins there (`pccl stress --standbys 1 --seed 505`)."""
    with two_masters(3) as (masters, (first, _), actors):
        actors[2].signal(signal.SIGSTOP)
        first.kill()
        check_agreement(all_follow(actors[:2], WORK))
        first.start()
        actors[2].signal(signal.SIGCONT)
        actors[2].tell("call", "update_topology")
        time.sleep(0.5)  # most often it waits at the first master by now, and the newcomer behind it
        actors.append(Actor(masters, len(actors)))
        actors[3].tell("join", len(actors))
        assert actors[2].answer() == "MASTER_CONNECTION_FAILED"
        actors[2].tell("reconnect", len(actors))
        for actor in actors[:2]:
            actor.tell("form", len(actors))
        assert [actor.answer() for actor in actors] == [None] * len(actors)


def test_a_standby_begins_no_run():
    with two_masters(0) as (_, (first, second), actors):
        first.kill()
        fresh = Actor(second.address, 0)
        actors.append(fresh)
        assert fresh.ask("connect") == "MASTER_CONNECTION_FAILED"


def test_a_master_alone_that_was_stopped_gets_all_its_members_back():
    """Some leave it, some are just about to; whoever speaks first, nobody is lost and no op is."""
    limit = 1.0
    steps = 6 * [Ops("plain", (Reduce(300_000), Reduce(10))), Vote("update_topology", 0.0), Sync(1 << 20, 1), Pause(0.02)]
    with MasterProcess(heartbeat_limit=limit) as master, troupe(master.address, 4) as actors:
        for limits in (0.85, 0.95, 1.0, 1.05, 1.2, 2.5):
            for actor in actors:
                actor.tell("follow", steps)
            time.sleep(0.05)
            master.signal(signal.SIGSTOP)
            time.sleep(limits * limit)
            master.signal(signal.SIGCONT)
            logs = {actor.number: actor.answer() for actor in actors}
            check_agreement(logs)
            assert not any(losses(log) for log in logs.values()), f"a peer was lost after {limits} limits"


def test_what_members_have_said_is_heard_by_a_master_that_wakes_and_writes_first():
    """Of seven, three leave while it is stopped. It reads that first and writes to the others, of which three look for it
    meanwhile: these connections break in its hands. MOVED, which lies in them, must not be lost, or the run goes on with the one
    that is left."""
    limit = 1.0
    steps = [Ops("plain", (Reduce(1000),)), Vote("update_topology", 0.0)]
    with MasterProcess(heartbeat_limit=limit) as master, troupe(master.address, 7) as actors:
        leaving, staying = actors[:3], actors[3:]
        for actor in staying:
            actor.signal(signal.SIGSTOP)  # not a heartbeat of theirs lies at the master before they leave
        time.sleep(0.05)
        master.signal(signal.SIGSTOP)
        time.sleep(0.05)
        for actor in leaving:
            actor.tell("close")
        for actor in leaving:
            actor.answer()
        for actor in staying:
            actor.signal(signal.SIGCONT)
        time.sleep(0.5 * limit)
        staying[0].signal(signal.SIGSTOP)  # the one that has noticed nothing
        time.sleep(0.8 * limit)
        master.signal(signal.SIGCONT)
        staying[0].signal(signal.SIGCONT)
        check_agreement(all_follow(staying, steps))


def test_a_stopped_master_harms_nobody_when_it_wakes():
    with two_masters(3) as (_, (first, _), actors):
        first.signal(signal.SIGSTOP)
        follow_unharmed(actors, lambda: None)
        first.signal(signal.SIGCONT)
        time.sleep(0.3)
        follow_unharmed(actors, lambda: None)
        stray = Actor(first.address, len(actors))
        actors.append(stray)
        assert stray.ask("connect") == "MASTER_CONNECTION_FAILED", "it began a run beside the one that goes on"
        follow_unharmed(actors[:3], lambda: None)


# ---- as a user has it ----


def start_program(command: str, log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """A command as in docs/masters.md; what it says goes to `log`."""
    words = [sys.executable, "-m", "pccl.cli", *shlex.split(command)[1:]] if command.startswith("pccl ") else shlex.split(command)
    with log.open("ab") as out:
        return subprocess.Popen(words, stdout=out, stderr=out, env={**os.environ, "PYTHONUNBUFFERED": "1", **environment})


def wait_for_text(log: Path, text: str) -> None:
    end = time.monotonic() + PATIENCE
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < end, f"{log.name} never said {text!r}"
        time.sleep(0.02)


@contextlib.contextmanager
def killed_at_the_end(*processes: subprocess.Popen[bytes]):
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def guide_block(kind: str, containing: str) -> str:
    text = (Path(__file__).parents[2] / "docs" / "masters.md").read_text()
    return next(block for block in re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) if containing in block)


def test_the_guide_has_a_standby(tmp_path):
    """The commands and the address of docs/masters.md, on other ports: kill -9 of the first, which stays dead."""
    ports = dict(zip(("48148", "48248"), map(str, free_ports(2)), strict=True))

    def elsewhere(text: str) -> str:
        return re.sub("48148|48248", lambda found: ports[found[0]], text)

    commands = elsewhere(guide_block("bash", "--masters")).splitlines()
    quoted = re.search(r'Communicator\("(.*?)"\)', elsewhere(guide_block("python", "127.0.0.1:48248")))
    assert quoted is not None
    masters = quoted[1]
    logs = [tmp_path / "first", tmp_path / "second"]
    first, second = (start_program(*pair, PCCL_LOG_LEVEL="NOTICE") for pair in zip(commands, logs, strict=True))
    with killed_at_the_end(first, second):
        for log in logs:
            wait_for_text(log, "listening on")
        with troupe(masters, 3) as actors:
            follow_unharmed(actors, lambda: os.kill(first.pid, signal.SIGKILL))
            wait_for_text(logs[1], "takes over the run in generation 2: 3 of 3 members")
            fresh = Actor(masters, 3)
            actors.append(fresh)
            fresh.tell("join", 4)
            for actor in actors[:3]:
                actor.tell("form", 4)
            assert [actor.answer() for actor in actors] == [None] * 4
            follow_unharmed(actors, lambda: None)


@pytest.mark.parametrize("standby", [False, True])
def test_sigterm_of_a_master_does_not_end_the_run(tmp_path, standby):
    """The peers wait for it, or go on with the standby, which says so at the default level of the log."""
    ports = free_ports(2 if standby else 1)
    masters = ",".join(f"127.0.0.1:{port}" for port in ports)
    commands = [f"pccl master --listen 127.0.0.1:{port} --masters {masters}" for port in ports]
    logs = [tmp_path / f"master-{port}" for port in ports]
    with contextlib.ExitStack() as stack:
        running = [start_program(*pair, PCCL_LOG_LEVEL="") for pair in zip(commands, logs, strict=True)]
        stack.enter_context(killed_at_the_end(*running))
        for log in logs:
            wait_for_text(log, "listening on")
        actors = stack.enter_context(troupe(masters, 2))

        def stop():
            running[0].send_signal(signal.SIGTERM)
            assert running[0].wait(PATIENCE) == 0
            if not standby:
                again = start_program(commands[0], tmp_path / "again", PCCL_LOG_LEVEL="")
                stack.enter_context(killed_at_the_end(again))

        follow_unharmed(actors, stop)
        wait_for_text(logs[0], "stopped, 2 peers: the run waits for another master, or for this one to return")
        wait_for_text(logs[1] if standby else tmp_path / "again", "takes over the run in generation 2: 2 of 2 members")


def test_a_newcomer_is_told_why_it_waits(tmp_path):
    """One survivor of three holds it up, but not longer than until its own limit."""
    why = "1 of the 3 members of epoch"
    recovery = {"PCCL_MASTER_RECOVERY_MS": "4000"}
    with (
        MasterProcess(heartbeat_limit=1.0, stderr=tmp_path / "master") as master,
        troupe(master.address, 3, environment=recovery) as actors,
    ):
        begin = time.monotonic()
        master.kill()
        for actor in actors[1:]:
            actor.kill()
        actors[0].tell("call", "are_peers_pending")
        master.start()
        wait_for_text(tmp_path / "master", why)
        fresh = Actor(master.address, 3, stderr=tmp_path / "fresh")
        actors.append(fresh)
        fresh.tell("connect")
        wait_for_text(tmp_path / "fresh", why)
        assert actors[0].answer() == "MASTER_CONNECTION_FAILED"
        assert time.monotonic() - begin > 4
        assert fresh.answer() is None
