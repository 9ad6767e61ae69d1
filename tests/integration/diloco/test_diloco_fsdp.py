"""Replicas whose model is sharded over two processes with `fully_shard`: each shard is averaged in a peer group of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.distributed as dist
from diloco_reference import inner_step, make_model, make_optimizer, simulate
from performers import MasterProcess, Performer, preload
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pccl
from pccl.diloco import DiLoCo, _membership
from pccl.lab.ports import free_ports

preload(__name__)

SHARDS = 2
EVERY = 3

MANY, FEW = 5000, 20
"""Votes for which newcomers wait for the rest of their replica; the same number at all."""


class Process:
    """Of a replica: the shard of its rank."""

    def __init__(self, pipe: Connection, master: str, replica: int, shard: int, port: int, peers: int, votes: int) -> None:
        _membership.VOTES_FOR_SHARDS = votes
        torch.set_num_threads(1)
        self.master, self.replica, self.shard, self.port, self.peers = master, replica, shard, port, peers
        self.log: list[Any] = []

    def enter(self) -> int:
        store = dist.TCPStore("127.0.0.1", self.port, SHARDS, is_master=self.shard == 0)
        dist.init_process_group("gloo", store=store, rank=self.shard, world_size=SHARDS)
        mesh = init_device_mesh("cpu", (SHARDS,))
        self.model = make_model(seed=1 if self.replica < 2 else 9)
        for layer in (self.model[0], self.model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = make_optimizer(self.model)
        comm = pccl.Communicator(self.master, peer_group=self.shard)
        self.diloco = DiLoCo(self.model, comm, self.optimizer, sync_every=EVERY, shards=SHARDS, peers=self.peers)
        self.diloco.__enter__()
        return self.diloco.outer_step

    def round(self) -> tuple[int, int, str, bool]:
        outer = self.diloco.outer_step
        for step in range(EVERY):
            inner_step(self.model, self.optimizer, self.replica, outer, step)  # both have the same data
            done = self.diloco.step()
        assert done is not None
        assert done.repaired_bytes == 0
        return done.outer_step, done.world_size, self.diloco.parity, done.admitted

    def parameters(self) -> list[np.ndarray]:
        outer = self.diloco.outer
        return [outer.parameters[part.begin : part.end].numpy().copy() for part in outer.parts]


class Replica:
    """The processes of a replica, seen from the test."""

    def __init__(self, master: str, number: int, peers: int, votes: int) -> None:
        [port] = free_ports(1)
        self.number = number
        self.processes = [Performer(Process, number, (master, number, shard, port, peers, votes)) for shard in range(SHARDS)]

    def tell(self, method: str) -> None:
        for process in self.processes:
            process.tell(method)

    def answers(self) -> list[Any]:
        return [process.answer() for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


def rounds(replicas: list[Replica]) -> list[tuple[int, int, str, bool]]:
    """Of each shard, which all replicas agree on."""
    for replica in replicas:
        replica.tell("round")
    answers = [replica.answers() for replica in replicas]
    for others in answers[1:]:
        assert others == answers[0]
    return answers[0]


@contextlib.contextmanager
def run(count: int, votes: int = MANY) -> Iterator[tuple[MasterProcess, list[Replica]]]:
    with MasterProcess(heartbeat_limit=30) as master, contextlib.ExitStack() as stack:
        replicas = [Replica(master.address, number, SHARDS * count, votes) for number in range(count)]
        for replica in replicas:
            stack.callback(replica.kill)
            replica.tell("enter")
        for replica in replicas:
            assert replica.answers() == [0, 0]
        yield master, replicas


def whole(replica: Replica) -> np.ndarray:
    """The outer parameters of all shards, in the order of the parameters: they are sharded by rows."""
    replica.tell("parameters")
    return np.concatenate([part for parts in zip(*replica.answers(), strict=True) for part in parts])


def test_shards_are_averaged_and_whole_replicas_die_and_join():
    with run(2) as (master, replicas):
        first, second = replicas
        for _ in range(2):
            rounds(replicas)
        present = [[0, 1]] * 2
        *_, expected = simulate(present, every=EVERY)
        for replica in replicas:
            np.testing.assert_allclose(whole(replica), expected, rtol=0, atol=1e-6)

        third = Replica(master.address, 2, 1, MANY)
        third.tell("enter")
        while not all(admitted for *_, admitted in rounds(replicas)):
            present.append([0, 1])
        present.append([0, 1])
        assert third.answers() == [len(present)] * SHARDS
        assert [world for _, world, *_ in rounds([first, second, third])] == [3, 3]
        second.kill()
        assert [world for _, world, *_ in rounds([first, third])] == [2, 2]
        present += [[0, 1, 2], [0, 2]]
        *_, expected = simulate(present, every=EVERY)
        np.testing.assert_allclose(whole(third), expected, rtol=0, atol=1e-6)
        third.kill()


def test_a_replica_that_is_not_whole_is_not_let_begin():
    with run(1, FEW) as (master, [first]):
        half = Performer(Lone, 1, (master.address,))
        half.tell("enter")
        told: list[Any] = []
        while not told or not told[-1][-1]:
            told = rounds([first])
        assert "not all 2" in half.answer()
        assert [world for _, world, *_ in rounds([first])] == [1, 1]
        half.kill()


class Lone:
    """A process whose replica never becomes whole."""

    def __init__(self, pipe: Connection, master: str) -> None:
        _membership.VOTES_FOR_SHARDS = FEW
        self.master = master
        self.log: list[Any] = []

    def enter(self) -> str:
        model = make_model()
        comm = pccl.Communicator(self.master, peer_group=0)
        parts = DiLoCo(model, comm, make_optimizer(model), sync_every=EVERY, shards=SHARDS)
        try:
            parts.__enter__()
        except pccl.diloco.JoinError as error:
            comm.close()
            return str(error)
        return "let in"
