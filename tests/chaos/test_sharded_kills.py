"""Random kills and joins in one training of a sharded model: nobody hangs, and no state is ever wrong."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import time
from pathlib import Path

import pytest
from performers import PATIENCE
from sharded_kills import Job

EVERY = 4

SIZE = 4

ROUNDS = int(os.environ.get("TEST_SHARDED_KILLS", "5"))
"""How often somebody is killed, and somebody joins."""

SEED = int(os.environ.get("TEST_SHARDED_SEED", "1"))

WAYS = (
    "at any time",
    "in a restore",
    "in a join",
    "newcomer in its join",
    "leaves",
    "in a snapshot",
    "stopped",
    "in the snapshot after a join",
    "holder",
    "while it leaves",
    "while another leaves",
)

ONE_LOSS = ("at any time", "in a snapshot", "stopped", "holder")

pytestmark = pytest.mark.timeout(120 + 30 * ROUNDS)


class Trial:
    """A training, and what its members are known to have reached."""

    def __init__(self, job: Job, chances: random.Random, *, has_replicas: bool) -> None:
        self.job = job
        self.has_replicas = has_replicas
        self.chances = chances
        self.step: dict[int, int] = {}
        """The last step that each member has begun."""
        self.complete: dict[int, int] = {}
        """The newest snapshot that each member knows to be complete, since the last change."""
        self.settled: dict[int, tuple[int, int]] = {}
        """Members, and the size and step of their last change, if the snapshot after it was complete."""
        self.lost: list[int] = []
        """Steps, by round with a kill."""
        self.lost_now = 0
        self.kills = self.joins = 0

    def hear(self) -> None:
        for one in self.job.heard():
            member = one["member"]
            if one["event"] == "step":
                self.step[member] = one["step"]
                self.complete[member] = max(self.complete.get(member, -1), one["complete"])
            if one["event"] != "changed":
                continue
            if member in self.step:
                self.lost_now = max(self.lost_now, one["before"] - one["step"])
                assert one["step"] >= self.complete[member], f"member {member} has gone back too far: {one}"
                self.complete[member] = -1
            if one["complete"]:
                self.settled[member] = one["size"], one["step"]
            else:
                self.settled.pop(member, None)

    def wait_for_all(self) -> None:
        """Until all who live are in a training of SIZE, whose snapshots are complete."""
        end = time.monotonic() + 2 * PATIENCE
        while True:
            self.hear()
            found = {self.settled.get(number) for number in self.job.members}
            if len(found) == 1 and None not in found and next(iter(found))[0] == SIZE:  # type: ignore[index]
                return
            if self.job.reap() and len(self.job.members) < SIZE:
                self.join()
            if time.monotonic() > end:
                raise AssertionError(f"hang: {self.settled} of {list(self.job.members)}; {self.job.happened[-20:]}")
            time.sleep(0.01)

    def any_member(self) -> int:
        return self.chances.choice(sorted(self.job.members))

    def kill(self, number: int) -> None:
        self.kills += 1
        self.job.kill(number)

    def join(self, harm: str = "") -> None:
        self.joins += 1
        self.job.join(harm)

    def wait_for_death(self, number: int) -> None:
        """Of one that is armed; after a while it is killed."""
        end = time.monotonic() + self.chances.uniform(1, 3)
        while time.monotonic() < end and self.job.members[number]._process.is_alive():
            self.hear()
            time.sleep(0.005)
        self.kill(number)

    def round(self, way: str) -> None:
        """One or two are lost, and as many join."""
        kills, self.lost_now = self.kills, 0
        self.settled.clear()  # all who live hear of a change: what they had settled on before may be the same size and step
        self._round(way)
        self.wait_for_all()
        if self.kills > kills:
            self.lost.append(self.lost_now)
            assert not (self.has_replicas and way in ONE_LOSS and self.lost_now), f"{self.lost_now} steps are lost"
        elif way == "leaves":
            assert self.lost_now == 0

    def _round(self, way: str) -> None:
        time.sleep(self.chances.uniform(0, 0.4))
        victim = self.any_member()
        if way == "at any time":
            self.kill(victim)
        elif way == "in a snapshot":
            self.job.arm(victim, "snapshot", self.chances.randrange(14))
            self.wait_for_death(victim)
        elif way == "leaves":
            self.job.members[victim].signal(signal.SIGTERM)
            self.join()
            self.job.members.pop(victim).answer()
            return
        elif way.startswith("while"):
            leaver = victim if "it" in way else self.chances.choice(sorted(self.job.members.keys() - {victim}))
            self.job.arm(victim, "restore", self.chances.randrange(24))
            self.job.members[leaver].signal(signal.SIGTERM)
            if leaver != victim:
                self.job.members.pop(leaver).answer()
                self.join()
            self.wait_for_death(victim)
        elif way == "in the snapshot after a join":
            self.join()
            self.job.arm(victim, "snapshot", 5 + self.chances.randrange(9))
            self.wait_for_death(victim)
            return
        elif way == "holder":
            assert kill_process(b"pccl._host.holder", self.job.name.encode()) == self.job.has_holder
            time.sleep(self.chances.uniform(0, 0.2))
            self.kill(victim)
        elif way == "in a restore":
            other = self.chances.choice(sorted(self.job.members.keys() - {victim}))
            self.job.arm(victim, "restore", self.chances.randrange(24))
            self.kill(other)
            self.wait_for_death(victim)
            self.join()
        elif way == "in a join":
            self.job.arm(victim, "restore", self.chances.randrange(24))
            self.join()
            self.wait_for_death(victim)
            return
        elif way == "newcomer in its join":
            self.join(f"restore {self.chances.randrange(24)}")
            self.wait_for_death(max(self.job.members))
            return
        else:
            self.job.members[victim].signal(signal.SIGSTOP)
            time.sleep(self.chances.uniform(0.1, 0.8))
            self.job.members[victim].signal(signal.SIGCONT)
            self.kill(self.any_member())
        time.sleep(self.chances.uniform(0, 0.3))
        self.join()


def kill_process(*words: bytes) -> int:
    """Kills those that have all these in their command lines: one names this job, or an address of its masters. How many."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found = path.read_bytes()
            if all(word in found for word in words):
                os.kill(int(path.parent.name), signal.SIGKILL)
                count += 1
    return count


TWO_LOSSES = {
    "copies": {"copies": 2, "holder": False},
    "code": {"code": (2, 2), "holder": False},
    "holder": {"copies": 2},
    "replicas": {"copies": 2, "holder": False, "shards": 2},
}


@pytest.mark.parametrize("redundancy", TWO_LOSSES.values(), ids=TWO_LOSSES)
def test_members_are_killed_and_others_join(tmp_path, redundancy):
    chances = random.Random(f"{SEED} {redundancy}")
    name = f"test-{os.getpid()}-kills"
    with Job(tmp_path, every=EVERY, name=name, **redundancy) as job:
        trial = Trial(job, chances, has_replicas="shards" in redundancy)
        job.start(SIZE)
        trial.settled = dict.fromkeys(job.members, (SIZE, 0))  # the first change has nothing before it
        end = time.monotonic() + PATIENCE
        while any(trial.complete.get(number, -1) < 0 for number in job.members):
            assert time.monotonic() < end, "no snapshot is complete"
            trial.hear()
            trial.settled = dict.fromkeys(job.members, (SIZE, 0))
            time.sleep(0.01)
        order = chances.sample(WAYS, len(WAYS))
        ways = [order[number % len(WAYS)] for number in range(ROUNDS)]
        trial.wait_for_all()
        for number, way in enumerate(ways):
            print(f"round {number}: {way}, members {sorted(job.members)}, step {max(trial.step.values())}", flush=True)
            if number == ROUNDS // 2:
                master = job.where[0].split(",")[0].encode()
                master = b"--listen\0" + job.where[0].split(",")[0].encode() + b"\0"
                assert kill_process(b"spawned_master\0", master) == 1
            trial.round(way)
        lasts = job.end(max(trial.step.values()) + 50)
        assert len(set(lasts)) == 1
        trial.hear()
        most, median = max(trial.lost, default=0), statistics.median(trial.lost or [0])
        print(f"{trial.kills} kills, {trial.joins} joins; steps lost: median {median:g}, most {most}; at step {lasts[0]}")
        assert most < 2 * EVERY
