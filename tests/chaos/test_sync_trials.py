"""Seeded random trials of shared state: donors, receivers and masters are killed or stopped at random points of a sync.

A trial forms a group of 2 to 5 members in 1 to 4 processes, lets them differ, and harms a process before its vote, while leaves
travel, or at the commit. Then everything is repaired: the survivors sync again, those that lost their master meet at another
one, those that were stopped wake up, learn that they are out, and come back, a newcomer joins. After each sync each process
compares its memory, byte for byte, with what a model of the election allows.

CHAOS_SEED=17 plays one seed alone (`pytest -k sync_trials`); CHAOS_TRIALS=5000 plays so many (60 unless told), from CHAOS_FIRST
on; CHAOS_STOPS=1 stops processes in all of them. A seed fixes who holds what, and which fault hits whom where.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
from performers import Performer
from state_actors import Blow, Content, Holder, Outcome

BATCH = 10
"""Seeds per test: few enough to spread over workers, enough to pay for a test's start."""

ONE = os.environ.get("CHAOS_SEED")
FIRST = int(ONE or os.environ.get("CHAOS_FIRST", "0"))
TRIALS = 1 if ONE else int(os.environ.get("CHAOS_TRIALS", "60"))
DEAD = "MASTER_CONNECTION_FAILED"
NONE = "NO_SHARED_STATE_AVAILABLE"
LIMIT = 5.0
"""Seconds of silence after which a process is lost: the contract's default, which no living process comes near. A call waits that
long at most for each that is lost; the patience of the calls (`actors.PATIENCE`) is six of these."""
STOPS = float(os.environ.get("CHAOS_STOPS", "0.1"))
"""Of the trials, how many stop a process instead of killing it: these take their time, until the silence is noticed."""


def subsets(voters: Sequence[Voter]) -> Iterator[tuple[Voter, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(voters, n) for n in range(len(voters) + 1))


@dataclasses.dataclass(eq=False)
class Voter:
    """A member, as the model knows it."""

    process: Performer
    content: Content | None
    """None: a transfer into it was cut short and has left something else."""
    revision: int
    committed: bool = False
    doubtful: bool = False
    """A transfer into it was cut short, but it holds what it held: whether it was written to is not known."""


@dataclasses.dataclass
class Group:
    """What the master knows of the group: the revision it expects, None before the first commit."""

    voters: list[Voter]
    expected: int | None = None

    def candidates(self, voters: Sequence[Voter]) -> list[Voter]:
        standing = [voter for voter in voters if voter.content is not None]
        revisions = {voter.revision for voter in standing}
        if self.expected is None:
            return [voter for voter in standing if voter.revision == max(revisions)]
        if not any(voter.committed for voter in voters):
            return [voter for voter in standing if voter.revision == max(revisions) > 0]
        if self.expected in revisions:
            return [voter for voter in standing if voter.revision == self.expected]
        return [voter for voter in standing if voter.revision == self.expected - 1 and voter.committed]

    def winners(self, absent: Sequence[Performer]) -> set[tuple[int, Content] | None]:
        """All that may win, if members of these have voted or have not, each by itself: the master loses them one after another.
        And if the doubtful ones are complete or are not. None: nobody."""
        found: set[tuple[int, Content] | None] = set()
        for gone in subsets([voter for voter in self.voters if voter.process in absent]):
            voting = [voter for voter in self.voters if voter not in gone]
            for incomplete in subsets([voter for voter in voting if voter.doubtful]):
                voters = [dataclasses.replace(voter, content=None) if voter in incomplete else voter for voter in voting]
                candidates = self.candidates(voters)
                votes: Counter[Any] = Counter((voter.revision, voter.content) for voter in candidates)
                found |= {winner for winner in votes if votes[winner] == max(votes.values())} if votes else {None}
        return found


class Trial:
    """One run of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.processes: list[Performer] = []
        self.group = Group([])
        self.known: set[Content] = set()
        self.stop = self.rng.random() < STOPS
        self.lanes = self.rng.choice([1, 1, 2, 4])
        megabyte = 1 << 20
        self.sizes = [self.rng.choice([2, 6, 16]) * megabyte + 5, 1, 300_001, 0, self.rng.choice([77, 2 * megabyte])]
        self.rng.shuffle(self.sizes)
        self.master = self.process()
        self.address = ""

    # ---- processes ----

    def process(self) -> Performer:
        environment = {
            "PCCL_SAME_HOST_MEMORY": self.rng.choice("001"),
            "PCCL_CPU_LEVEL": self.rng.choice(["", "", "portable", "avx2"]),
            "PCCL_HASH_THREADS": self.rng.choice("12"),
            "PCCL_MASTER_RECOVERY_MS": "0",  # a lost master is lost for good: they meet at another one
            "PCCL_LOG_LEVEL": "NONE",  # a level that is not there is told of, and the default taken
        }
        process = Performer(Holder, len(self.processes), (), environment)
        self.processes.append(process)
        return process

    def add(self, process: Performer, contents: Sequence[Content], revisions: Sequence[int]) -> None:
        """Members of a process, that have just joined."""
        process.ask("hold", contents, revisions)
        self.known.update(contents)
        self.group.voters += [Voter(process, content, revision) for content, revision in zip(contents, revisions, strict=True)]

    def members(self) -> list[Performer]:
        """The processes that have members, each once."""
        return list(dict.fromkeys(voter.process for voter in self.group.voters))

    def join(self, newcomers: dict[Performer, int]) -> None:
        """These processes, with so many members each, beside those that are in."""
        world = len(self.group.voters) + sum(newcomers.values())
        for process, count in newcomers.items():
            process.tell("join", self.address, [self.lanes] * count, self.sizes, world)
        self.form(newcomers, world)

    def form(self, newcomers: Collection[Performer], world: int) -> None:
        old = self.members()
        for process in old:
            process.tell("form", world)
        assert [process.answer() for process in [*newcomers, *old]] == [None] * (len(old) + len(newcomers))

    def forget(self, process: Performer) -> list[Voter]:
        """It is out: its members."""
        gone = [voter for voter in self.group.voters if voter.process is process]
        self.group.voters = [voter for voter in self.group.voters if voter.process is not process]
        return gone

    # ---- rounds ----

    def sync(
        self, blow: Blow | None = None, striker: Performer | None = None, victim: Performer | None = None
    ) -> dict[Performer, list[Outcome]]:
        """A round; checks what those outside `victim` see of it, and gives it. All of them are in the group."""
        members = self.members()
        for process in members:
            process.tell("sync", sorted(self.known, key=str), [blow] if process is striker else [])
        outcomes = {process: process.answer() for process in members if process is not victim}
        if victim is not None and blow is not None:
            victim.signal(blow.signal)  # if the moment never came
        self.check(outcomes, victim)
        return outcomes

    def check(self, outcomes: dict[Performer, list[Outcome]], victim: Performer | None) -> None:
        master_lost = victim is self.master
        winners = self.group.winners([] if victim is None else [victim])
        seen = [outcome for process in outcomes for outcome in outcomes[process]]
        results = {outcome.result for outcome in seen}
        context = f"{seen}\nvoters {self.group.voters}\nwinners {winners}"
        assert results <= ({"SUCCESS", DEAD} if master_lost else {"SUCCESS", NONE}), context
        assert len(results) <= (2 if master_lost else 1), context
        won = {(outcome.revision, outcome.content) for outcome in seen if outcome.result == "SUCCESS"}
        assert len(won) <= 1, context
        assert won <= winners, context
        if NONE in results:
            living = {voter.content for voter in self.group.voters if voter.process is not victim}
            assert any(winner is None or winner[1] not in living for winner in winners), f"there was a donor: {context}"
        if won and not victim:
            assert sum(outcome.tx_bytes for outcome in seen) == sum(outcome.rx_bytes for outcome in seen), context
        self.learn(outcomes, winners, context)
        if won:
            [(revision, _)] = won
            self.group.expected = revision + 1

    def learn(self, outcomes: dict[Performer, list[Outcome]], winners: set[tuple[int, Content] | None], context: str) -> None:
        for process, seen in outcomes.items():
            for voter, outcome in zip([one for one in self.group.voters if one.process is process], seen, strict=True):
                if outcome.result == "SUCCESS":
                    voter.committed, voter.doubtful = True, False
                    voter.content, voter.revision = outcome.content, outcome.revision
                    continue
                assert outcome.revision == voter.revision, f"an error has changed the revision: {context}"
                receives = voter.content is None or any(winner is not None and winner[1] != voter.content for winner in winners)
                assert receives or outcome.content == voter.content, f"written without need: {context}"
                voter.doubtful |= receives
                if outcome.content != voter.content:
                    voter.content = None  # even if it is all there: nobody has told it that this is what it should hold

    def repaired(self) -> None:
        """The next sync: it succeeds, at the latest when somebody joins who holds something."""
        if {outcome.result for seen in self.sync().values() for outcome in seen} == {"SUCCESS"}:
            return
        rescuer = self.process()
        self.join({rescuer: 1})
        lost = not any(voter.committed for voter in self.group.voters)
        fresh = Content(self.rng.randrange(100, 200))
        self.add(rescuer, [fresh], [9 if self.group.expected is None or lost else self.group.expected])
        assert {outcome.result for seen in self.sync().values() for outcome in seen} == {"SUCCESS"}

    def step(self) -> None:
        """What a training step does, on all."""
        for process in self.members():
            process.ask("step")
        for voter in self.group.voters:
            assert voter.content is not None
            voter.content = voter.content.step()
            voter.revision += 1
            self.known.add(voter.content)

    # ---- the parts of a trial ----

    def begin(self) -> None:
        """A new group, or one that has committed; then some of it holds what wins, and the others something else."""
        rng = self.rng
        layout = rng.choice([[1, 1], [1, 1, 1], [1, 1, 1], [2, 1], [1, 2], [1, 1, 1, 1], [2, 1, 1], [1, 1, 2], [2, 2], [3, 1, 1]])
        self.address = self.master.ask("serve", LIMIT)
        newcomers = {self.process(): count for count in layout}
        self.join(newcomers)
        revision = rng.choice([0, 0, 5])
        for process, count in newcomers.items():
            self.add(process, [Content(1)] * count, [revision] * count)
        if rng.random() < 0.5:
            self.sync()
            if rng.random() < 0.5:
                self.step()
                self.sync()
            revision = self.group.expected or 0
        voters = self.group.voters
        holders = rng.sample(range(len(voters)), rng.randint(1, len(voters) - 1))
        for at, voter in enumerate(voters):
            if at in holders:
                voter.content, voter.revision = Content(2), revision
            else:
                # A few leaves or all; below the winner, or beside it
                voter.content = Content(2, drift=1 + at) if rng.random() < 0.3 else Content(10 + at)
                voter.revision = revision if rng.random() < 0.3 else max(0, revision - rng.randint(1, 3))
            self.known.add(voter.content)
        for process in self.members():
            mine = [voter for voter in voters if voter.process is process]
            process.ask("hold", [voter.content for voter in mine], [voter.revision for voter in mine])

    def strike(self) -> Performer:
        """The round that is disturbed: who was killed or stopped in it."""
        rng = self.rng
        victim = rng.choice([*self.members(), self.master])
        when = rng.choice(["delay", "part", "part", "done"])
        value = {"delay": rng.random() * 0.006, "part": rng.choice([0.0, rng.random()]), "done": rng.random() * 0.0006}[when]
        blow = Blow(victim.pid, signal.SIGSTOP if self.stop else signal.SIGKILL, when, value)
        receiving = [voter.process for voter in self.group.voters if voter.content != Content(2)]
        self.sync(blow, rng.choice(receiving), victim)
        return victim

    def lose_a_master(self) -> None:
        """It is gone for all: they meet at another one, or at the same one when it has woken up."""
        old = self.master
        if self.stop:
            survivors = self.members()
            assert {result for process in survivors for result in process.ask("votes")} == {DEAD}
            old.signal(signal.SIGCONT)
        if not self.stop or self.rng.random() < 0.5:
            self.master = self.process()
            self.address = self.master.ask("serve", LIMIT)
            old.kill()
        members = self.members()
        self.rng.shuffle(members)
        for process in members:
            process.tell("rejoin", self.address, len(self.group.voters))
        assert [process.answer() for process in members] == [None] * len(members)
        self.group.expected = None
        for voter in self.group.voters:
            voter.committed = False

    def wake(self, victim: Performer, voters: list[Voter]) -> None:
        """It finds out that it is out, at once or in its next call, and comes back."""
        victim.signal(signal.SIGCONT)
        outcomes = victim.answer()
        for outcome in outcomes:
            assert outcome.result in ("SUCCESS", NONE, DEAD), outcome
            assert outcome.result == DEAD or "died" not in outcome.detail, outcome
            assert outcome.result != "SUCCESS" or outcome.content is not None, outcome
        # Before it has read all that was said, a vote is still made, and ends with its expulsion.
        assert set(victim.ask("votes")) <= {DEAD, "RANK_CONNECTION_FAILED"}
        assert set(victim.ask("votes")) == {DEAD}
        world = len(self.group.voters) + len(voters)
        victim.tell("rejoin", self.address, world)
        self.form([victim], world)
        contents = [outcome.content or Content(3) for outcome in outcomes]
        self.add(victim, contents, [0] * len(contents))

    def run(self) -> None:
        self.begin()
        victim = self.strike()
        if victim is self.master:
            self.lose_a_master()
            self.repaired()
        elif len(self.members()) == 1:
            return  # nobody is left
        else:
            gone = self.forget(victim)
            if not self.stop:
                victim.kill()
            self.repaired()  # of the survivors: it ends when the victim is out
            if self.stop:
                self.wake(victim, gone)
                self.repaired()
        if self.rng.random() < 0.3:
            fresh = self.process()
            self.join({fresh: 1})
            self.add(fresh, [Content(50)], [0])
            self.repaired()
        self.step()
        outcomes = self.sync()
        assert all(outcome.rx_bytes == outcome.tx_bytes == 0 for seen in outcomes.values() for outcome in seen), outcomes

    def end(self) -> None:
        for process in self.processes:
            process.kill()


def play(seed: int) -> None:
    trial = Trial(seed)
    try:
        trial.run()
    except BaseException:
        print(f"replay with CHAOS_SEED={seed}")
        raise
    finally:
        trial.end()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("first", range(FIRST, FIRST + TRIALS, BATCH))
def test_sync_trials(first):
    for seed in range(first, min(first + BATCH, FIRST + TRIALS)):
        play(seed)
