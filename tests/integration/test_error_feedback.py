"""Error feedback while members are lost: nothing of what was given is lost with an op that is aborted or redone."""

from __future__ import annotations

import contextlib
import random
import threading
from uuid import uuid4

import numpy as np
from peers import PATIENCE, Background, address_of, admit, on_all

from pccl import (
    Communicator,
    Contributors,
    ErrorFeedback,
    MasterNode,
    PCCLError,
    PeerLostError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceOp,
)

F32 = np.float32
COUNT, OPS = 30_011, 200
ALGORITHMS = [QuantizationAlgorithm.BLOCK_INT8, QuantizationAlgorithm.BLOCK_INT4, QuantizationAlgorithm.BLOCK_E3M0]


class Peer:
    """A member that comes back with its residual when it has been lost, as from a checkpoint."""

    def __init__(self, address: str, number: int) -> None:
        self.address = address
        self.number = number
        self.feedback = ErrorFeedback(np.empty(COUNT, F32))
        self.given = np.zeros(COUNT)
        self.applied = np.zeros(COUNT)
        self.comm = Communicator(address)

    def input(self, step: int) -> np.ndarray:
        return np.random.default_rng((step, self.number)).standard_normal(COUNT, F32)

    def reduce(self, step, op, options, retry, in_place):
        """The result, and by whom; or its error, of which the residual shows nothing."""
        mine = self.input(step)
        result = mine if in_place else np.empty_like(mine)
        before, bits = self.feedback.residual, self.feedback.residual.tobytes()
        arguments = {"op": op, "quantization_options": options, "retry": retry, "residual": self.feedback}
        try:
            info = self.comm.all_reduce(mine, result, **arguments, timeout=PATIENCE)
        except PCCLError as error:
            assert self.feedback.residual is before
            assert before.tobytes() == bits
            if isinstance(error, PeerLostError):  # else it is this peer that was closed
                assert not in_place or (mine == self.input(step)).all()
            return error
        self.applied += result.astype(np.float64) * (info.local_world_size if op is ReduceOp.AVG else 1)
        return info.local_world_size

    def adopt_loss(self) -> None:
        """Until it knows that it is one of two."""
        while self.comm.world_size > 2:
            with contextlib.suppress(PeerLostError):
                self.comm.all_reduce(np.zeros(1, F32), op=ReduceOp.SUM, timeout=PATIENCE)


@contextlib.contextmanager
def three_peers():
    with MasterNode("127.0.0.1:0") as master:
        peers = [Peer(address_of(master), number) for number in range(3)]
        try:
            for number, peer in enumerate(peers):
                admit([other.comm for other in peers[:number]], peer.comm)
            yield peers
        finally:
            for peer in peers:
                peer.comm.close()


def run_with_a_death(peers, when, pause, call):
    """All but the last return from `call`; the last leaves before it has begun, while it is in it, or at about its end."""
    first, second, victim = peers
    running = [Background(call, first)]
    if when == "end":
        running.append(Background(call, second))
    if when != "before":
        running.append(Background(call, victim))
    threading.Event().wait(pause)  # how far it comes is up to the machine; without `second` not to the end
    victim.comm.close()
    if when != "end":
        running.insert(1, Background(call, second))
    return [one.result() for one in running]


def test_200_ops_with_20_aborts():
    """And with 4 deaths after the op, or at its end. What survivors have the result of counts, with the victim's part."""
    chance = random.Random(12)
    deaths = {
        step: ("before", "in it", "in it", "before", "in it", "end")[i % 6]
        for i, step in enumerate(chance.sample(range(OPS), 24))
    }
    aborted = redone = 0
    with three_peers() as peers:
        *survivors, victim = peers
        for step in range(OPS):
            options = QuantizationOptions(
                algorithm=chance.choice(ALGORITHMS),
                block=chance.choice([32, 256, 4096]),
                stochastic_seed=chance.choice([None, step]),
            )
            arguments = chance.choice([ReduceOp.SUM, ReduceOp.AVG]), options, chance.random() < 0.4, chance.random() < 0.5

            def call(peer, *_, step=step, arguments=arguments):
                return peer.reduce(step, *arguments)

            if step in deaths:
                outcomes = run_with_a_death(peers, deaths[step], chance.uniform(0, 0.004), call)
            else:
                outcomes = on_all(peers, call)
                assert outcomes == [3, 3, 3]
            if isinstance(outcomes[0], PCCLError):
                assert all(isinstance(error, PeerLostError) for error in outcomes[:2])
                aborted += 1
            else:
                assert outcomes[0] == outcomes[1]
                for peer in peers[: outcomes[0]]:
                    peer.given += peer.input(step)
                redone += outcomes[0] == 2
                if outcomes[0] == 3 and outcomes[2] != 3:  # it died before it heard of the end
                    victim.feedback.keep([Contributors(0, COUNT, frozenset([uuid4()]))])
            if step in deaths:
                on_all(survivors, lambda peer, _: peer.adopt_loss())
                victim.comm = Communicator(victim.address)
                admit([peer.comm for peer in survivors], victim.comm)
        assert aborted + redone >= 20
        assert aborted > 5
        assert redone > 3
        assert (peers[0].applied == peers[1].applied).all()
        given = sum(peer.given for peer in peers)
        residuals = sum(peer.feedback.residual.astype(np.float64) for peer in peers)
        error = peers[0].applied + residuals - given
        assert np.linalg.norm(error) / np.linalg.norm(given) < 1e-6
        assert np.linalg.norm(residuals) / np.linalg.norm(given) > 1e-4
