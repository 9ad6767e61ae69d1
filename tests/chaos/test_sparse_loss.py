"""Sparse averages between processes, of which some are killed: the same bits on all, and nothing lost but what the dead had."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest
from performers import PATIENCE, MasterProcess, Performer, preload

import pccl
from pccl._peer.sparse import SparseAverage, decode_add, encode, form_bytes

NUMEL = 300_000
K = 64
DECAY = 0.875

preload(__name__)


def gradient(number: int, step: int) -> np.ndarray:
    return (np.random.default_rng([number, step]).standard_normal(NUMEL) ** 3).astype(np.float32)


def weight(number: int) -> float:
    return 1.0 + number / 3


class Averager:
    """What a process can be asked."""

    log = None

    def __init__(self, pipe: Connection, address: str, number: int) -> None:
        self.comm = pccl.Communicator(address)
        self.number = number
        self.average = SparseAverage(np.zeros(NUMEL, np.float32), k=K, decay=DECAY)

    def join(self, world: int) -> None:
        self.comm.connect()
        self.comm.wait_for_peers(world, timeout=PATIENCE)

    def let_in(self, world: int) -> None:
        self.comm.wait_for_peers(world, timeout=PATIENCE)

    def step(self, step: int) -> tuple[int, bytes, bytes]:
        """Gives the number of contributors, the average and the residual."""
        result = gradient(self.number, step)
        info = self.average.average_async(self.comm, result, weight=weight(self.number)).wait(PATIENCE)
        assert info.tx_bytes <= (len(info.members) - 1) * (form_bytes(NUMEL, K) + 24)
        return len(info.members), result.tobytes(), self.average.residual.tobytes()

    def die_in_step(self, step: int, delay: float) -> None:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        self.step(step)
        time.sleep(PATIENCE)

    def give_up(self, step: int) -> tuple[bool, bool]:
        """Its wait is cut short, nothing is committed, a second exchange is refused; then it waits on."""
        before = self.average.residual.tobytes()
        result = gradient(self.number, step)
        with contextlib.suppress(pccl.PCCLTimeoutError):
            self.average.average_async(self.comm, result, weight=weight(self.number)).wait(0)
        handle = self.average.pending
        if handle is None:  # it was that fast
            return True, True
        same = self.average.residual.tobytes() == before
        with contextlib.suppress(pccl.UsageError):
            self.average.average_async(self.comm, result)
            same = False
        return same, len(handle.wait(PATIENCE).members) > 0

    def differ(self, k: int) -> bool:
        """Whether members with another k are told so, without a trace in the residual."""
        other = SparseAverage(np.zeros(NUMEL, np.float32), k=k)
        try:
            other.average_async(self.comm, gradient(self.number, 0)).wait(PATIENCE)
        except pccl.UsageError:
            return not other.residual.any()
        return False


class Team(list):
    master: MasterProcess


@contextlib.contextmanager
def averagers(count: int, heartbeat_limit: float = PATIENCE):
    """A master in its `master`, and these; the heartbeat limit is long because a slow machine is no death."""
    with MasterProcess(heartbeat_limit=heartbeat_limit) as master:
        found = Team(Performer(Averager, number, (master.address, number)) for number in range(count))
        found.master = master
        try:
            for number, one in enumerate(found):
                for other in found[: number + 1]:
                    other.tell("join" if other is one else "let_in", number + 1)
                for other in found[: number + 1]:
                    other.answer()
            yield found
        finally:
            for one in found:
                one.kill()


class Reference:
    """One process that has the gradients of all, in NumPy."""

    def __init__(self) -> None:
        self.residuals: dict[int, np.ndarray] = {}

    def step(self, step: int, numbers: list[int]) -> np.ndarray:
        total = np.zeros(NUMEL, np.float32)
        whole = sum(weight(number) for number in numbers)
        for number in numbers:
            residual = self.residuals.setdefault(number, np.zeros(NUMEL, np.float32))
            form = encode(gradient(number, step), k=K, residual=residual, decay=DECAY, residual_out=residual)
            decode_add(form, total, k=K, weight=weight(number) / whole)
        return total


def check_step(found, numbers, step, reference):
    for number in numbers:
        found[number].tell("step", step)
    answers = [found[number].answer() for number in numbers]
    wanted = reference.step(step, numbers)
    for number, (contributors, result, residual) in zip(numbers, answers, strict=True):
        assert contributors == len(numbers)
        assert result == wanted.tobytes()
        assert residual == reference.residuals[number].tobytes()


@pytest.mark.parametrize("delay", [None, 0.0, 0.004, 0.02])
def test_a_member_is_killed(delay):
    """The survivors have the exchange of the three, or made it again as two: all of them alike, to the last bit."""
    reference = Reference()
    with averagers(3) as found:
        for step in range(3):
            check_step(found, [0, 1, 2], step, reference)
        kept = {number: residual.copy() for number, residual in reference.residuals.items()}
        for number in (0, 2):
            found[number].tell("step", 3)
        if delay is None:
            found[1].kill()
        else:
            found[1].tell("die_in_step", 3, delay)
        answers = {number: found[number].answer() for number in (0, 2)}
        assert answers[0][:2] == answers[2][:2]
        numbers = [0, 1, 2] if answers[0][0] == 3 else [0, 2]
        assert delay is not None or numbers == [0, 2]
        reference.residuals = kept
        assert reference.step(3, numbers).tobytes() == answers[0][1]
        for number in (0, 2):
            assert answers[number][2] == reference.residuals[number].tobytes()
        check_step(found, [0, 2], 4, reference)
        found[0].kill()
        check_step(found, [2], 5, reference)


def test_a_member_is_killed_together_with_the_master():
    """The survivors find out who they are, and go on."""
    reference = Reference()
    with averagers(3, heartbeat_limit=5) as found:  # the next master waits so long for the dead
        check_step(found, [0, 1, 2], 0, reference)
        for number in (0, 2):
            found[number].tell("step", 1)
        found.master.kill()
        found[1].kill()
        found.master.start()
        answers = [found[number].answer(2 * PATIENCE) for number in (0, 2)]
        wanted = reference.step(1, [0, 2]).tobytes()
        assert [answer[:2] for answer in answers] == [(2, wanted)] * 2
        check_step(found, [0, 2], 2, reference)


def test_a_wait_that_is_cut_short():
    with averagers(2) as found:
        found[0].tell("give_up", 0)
        _, result, _ = found[1].ask("step", 0)
        assert found[0].answer() == (True, True)
        assert result == Reference().step(0, [0, 1]).tobytes()


def test_members_that_differ():
    with averagers(2) as found:
        found[0].tell("differ", 8)
        assert found[1].ask("differ", 64)
        assert found[0].answer()
