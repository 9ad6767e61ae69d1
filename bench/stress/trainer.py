"""One peer of a stress run that trains by pccl.diloco, as a user's program does. It checks and tells what each outer step did.

The loss is least where the parameters are those that the last outer step left, minus the pseudo-gradient that this process has to
give in this round (`gradient.Gradient`). The inner optimizer gets there in one step, and so each average tells who is in it.
"""

from __future__ import annotations

import contextlib
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import numpy as np
import torch
import torch._dynamo  # optimizers import it: once, before the processes are forked
from torch import Tensor, nn

import pccl
from pccl import Communicator, Contributors, ReduceOp
from pccl.diloco import AsyncDiLoCo, Compression, DiLoCo, JoinError, Round, StreamingDiLoCo
from stress.actor import LIVES, Actor, FlawError
from stress.content import Array
from stress.gradient import Gradient, Slack
from stress.reports import Accepted, Ended, Expelled, OpDone, Range, Stepped
from stress.workload import TrainingPlan, plan_training

LANES = 4
END_TAG = 1 << 32
POSITION = 1000
"""What the position in the data begins with."""
FP32_ROUNDING = 2.0**-22
"""Of a number around 1, by a few operations."""


class Layer(nn.Module):
    """Parameters without any computation of their own."""

    def __init__(self, size: int, random: torch.Generator) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(size, generator=random) * 0.1)


class Clock:
    """An object of the state, which each member has for itself; a joiner gets a copy."""

    def __init__(self) -> None:
        self.outer_step = 0

    def state_dict(self) -> dict[str, int]:
        """What a joiner gets."""
        return {"outer_step": self.outer_step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """At a joiner."""
        self.outer_step = state["outer_step"]


class Training:
    """What a user's program has, from joining the run to leaving it: a model, an optimizer, and a class of pccl.diloco."""

    def __init__(self, plan: TrainingPlan, comm: Communicator, gradient: Gradient, code: int, name: int) -> None:
        self._plan = plan
        self._gradient = gradient
        self._code = code
        random = torch.Generator().manual_seed(name)  # a joiner begins with other values than the run has
        self.model = nn.ModuleList(Layer(size, random) for size in plan.layers)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        arguments = dict(plan.settings)
        if plan.weighted:
            arguments["weight"] = lambda: gradient.weight(code)
        state = {"line": name, "position": 0, "clock": Clock()}
        kind = {"diloco": DiLoCo, "async": AsyncDiLoCo, "streaming": StreamingDiLoCo}[plan.method]
        compression = Compression(**plan.compression)
        self.diloco: DiLoCo | AsyncDiLoCo | StreamingDiLoCo = kind(
            self.model, comm, self._optimizer, compression=compression, state=state, **arguments
        )
        outers = [one.outer for one in self.diloco.fragments] if isinstance(self.diloco, StreamingDiLoCo) else [self.diloco.outer]
        self.outers = outers
        self._parameters = [part.parameter for outer in outers for part in outer.parts]  # in the order of an average
        self._targets: list[Tensor] = []

    @property
    def line(self) -> int:
        """The run: what the one gave who began it."""
        return int(self.diloco.state["line"])

    def check_start(self) -> None:
        """After joining: everything is that of the run."""
        if not torch.equal(self._inner(), self._outer()):
            raise FlawError("parity", "a newcomer does not begin with the outer parameters")
        made = self.diloco.outer_step
        told = int(self.diloco.state["position"]), self.diloco.state["clock"].outer_step
        if made and told != (POSITION + made - 1, made - 1):
            raise FlawError("parity", f"a newcomer after outer step {made} gets the position and the clock {told}")

    def begin_round(self, *, spoiled: bool = False) -> None:
        """Sets what the inner steps train for, and the state of the run. `spoiled`: an element of it is wrong."""
        number = self.diloco.outer_step
        self.diloco.state["position"] = POSITION + number
        self.diloco.state["clock"].outer_step = number
        # where averages overlap inner steps, these have mixed what they made before into the parameters
        start = self._outer() if self._plan.method == "streaming" else self._inner()
        target = start - torch.from_numpy(self._gradient.of(self._code, number))
        if spoiled:
            target[self._code] += 1
        self._targets = list(torch.split(target, [parameter.numel() for parameter in self._parameters]))

    def inner_step(self) -> None:
        """Of the inner optimizer."""
        self._optimizer.zero_grad()
        pairs = zip(self._parameters, self._targets, strict=True)
        loss = torch.stack([((parameter - target) ** 2).sum() for parameter, target in pairs]).sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        self._optimizer.step()

    def outer(self) -> tuple[Array, Array]:
        """Copies of the outer parameters and of their momentum, in the order of an average: fp32."""
        return self._outer().numpy(), torch.cat([outer.momentum for outer in self.outers]).numpy()

    def _outer(self) -> Tensor:
        return torch.cat([outer.parameters for outer in self.outers])

    def _inner(self) -> Tensor:
        return torch.cat([parameter.detach() for parameter in self._parameters])


class Trainer(Actor):
    """One process, over all its memberships."""

    def __init__(self, given: dict[str, Any], end: socket.socket) -> None:
        super().__init__(given, end)
        self._plan = plan_training(self._task.workload, self._task.seed, self._task.elements)
        self._gradient = Gradient(sum(self._plan.layers), weighted=self._plan.weighted)
        self._life = 0
        self._members: frozenset[UUID] = frozenset()  # those that were in the last average

    def _run(self) -> None:
        torch.set_num_threads(1)
        while True:
            try:
                self._live()
                return
            except pccl.ConnectError:  # the master is away, or could not admit it
                time.sleep(0.05)
            except (pccl.ConnectionFailedError, JoinError) as error:
                self._tell(Expelled(at=time.monotonic(), detail=f"{type(error).__name__}: {error}"))

    def _live(self) -> None:
        """One membership, until it ends as it was told to."""
        comm = Communicator(self._task.masters, 0, LANES)
        training = Training(self._plan, comm, self._gradient, self._task.code, self._task.serial * LIVES + self._life)
        begin = time.monotonic()
        with contextlib.ExitStack() as stack:
            with self._during("connect"):
                diloco = stack.enter_context(training.diloco)
            self._tell_start(training, time.monotonic() - begin)
            while not self._is_over(comm) and self._train(training):
                pass
            with self._during("close"):
                stack.close()
        comm.close()
        self._tell(Ended(at=time.monotonic(), line=training.line, step=diloco.outer_step, state=diloco.parity))

    def _tell_start(self, training: Training, seconds: float) -> None:
        diloco = training.diloco
        training.check_start()
        self._tell(
            Accepted(
                at=time.monotonic(),
                world=diloco.communicator.world_size,
                seconds=seconds,
                life=self._life,
                uuid=diloco.communicator.uuid.hex,
                line=training.line,
                step=diloco.outer_step,
                state=diloco.parity,
            )
        )
        self._life += 1
        self._members = frozenset()

    def _is_over(self, comm: Communicator) -> bool:
        """Whether the run ends here: the same answer on all members."""
        ending = np.array([self._ending.is_set()], np.int64)
        with self._during("meet"), contextlib.suppress(pccl.TooFewPeersError):
            comm.all_reduce(ending, op=ReduceOp.MAX, tag=END_TAG, retry=True)
        return bool(ending[0])

    def _train(self, training: Training) -> bool:
        """A round, which ends with an outer step. False: this process leaves, and the others go on."""
        diloco = training.diloco
        self._place.step = diloco.outer_step + 1
        before = training.outer()
        training.begin_round(spoiled=self._task.plant == "wrong-sum" and diloco.outer_step >= 20)
        done = None
        while done is None:
            if self._leaving.is_set():
                return False
            with self._during("work"):
                training.inner_step()
            with self._during("outer"):
                done = diloco.step()
        with self._during("work"):
            self._tell_round(training, done, before)
        return True

    def _tell_round(self, training: Training, done: Round, before: tuple[Array, Array]) -> None:
        diloco = training.diloco
        if done.repaired_bytes:
            raise FlawError("parity", f"{done.repaired_bytes} bytes of the state were replaced in outer step {done.outer_step}")
        here = frozenset(peer for one in done.contributors for peer in one.peers)
        self._tell(
            Stepped(
                at=time.monotonic(),
                line=training.line,
                step=done.outer_step,
                work=self._plan.method,
                world=done.world_size,
                ops=self._read(training, done, before),
                state=diloco.parity,
                received=done.rx_bytes,
                sent=done.tx_bytes,
                seconds=done.seconds,
                lost=len(self._members - here),
            )
        )
        self._members = here

    def _read(self, training: Training, done: Round, before: tuple[Array, Array]) -> list[OpDone]:
        """The average of an outer step, which the momentum tells."""
        number = done.outer_step - 1 - self._plan.delay
        text = f"outer step {done.outer_step}"
        if number < 0:
            if done.contributors:
                raise FlawError("contributors", f"{text} has applied an average of {done.contributors}: there is none yet")
            return []
        size = self._gradient.size
        said = _joined(done.contributors)
        if [one.start for one in said] + [size] != [0] + [one.stop for one in said]:
            raise FlawError("error", f"the ranges of {text} do not follow each other: {done.contributors}")
        lr, decay = (np.float32(value) for value in (training.diloco.outer_lr, training.diloco.outer_momentum))
        (parameters, momentum), (old, old_momentum) = training.outer(), before
        average = momentum.astype(np.float64) - old_momentum * decay
        rounding = FP32_ROUNDING * (1 + _largest(old, parameters, momentum))
        moved = old - lr * (average + decay * momentum.astype(np.float64))  # Nesterov's momentum, see docs/diloco.md
        if (wrong := np.count_nonzero(~(np.abs(parameters - moved) <= rounding))) > 0:
            raise FlawError("sum", f"{text}: {wrong} of {size} outer parameters are not what the average makes of them")
        slack = self._plan.slack
        slack = Slack(slack.element, slack.fit, rounding)
        ranges = [self._range(average, one, number, slack, text) for one in said]
        at = time.monotonic()
        return [OpDone(ranges=ranges, world=0, check=zlib.crc32(momentum.data), tries=1, size=4 * size, at=at)]

    def _range(self, average: Array, said: Contributors, number: int, slack: Slack, text: str) -> Range:
        reading = self._gradient.read(average[said.start : said.stop], number, slack, said.start)
        if reading.fault:
            raise FlawError("sum", f"{text}, from {said.start}: {reading.fault}")
        return Range(said.stop, reading.who, sorted(peer.hex for peer in said.peers))

    @contextmanager
    def _during(self, call: str) -> Iterator[None]:
        with self._place.during(call, time.monotonic()):
            yield


def _joined(given: Sequence[Contributors]) -> list[Contributors]:
    """Ranges that follow each other with the same contributors, as those of fragments, as one."""
    joined: list[Contributors] = []
    for one in given:
        if joined and joined[-1].peers == one.peers and joined[-1].stop == one.start:
            one = Contributors(joined.pop().start, one.stop, one.peers)
        joined.append(one)
    return joined


def _largest(*arrays: Array) -> float:
    return max(float(np.abs(array).max()) for array in arrays)


def run(given: dict[str, Any], end: socket.socket) -> int:
    """The whole life of a peer's process."""
    return Trainer(given, end).perform()
