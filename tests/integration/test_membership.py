"""What a program reads of its membership, and how a group is formed."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from peers import PATIENCE, Background, MasterProcess, address_of, admit, on_all, processes, team, together

import pccl
from pccl import Communicator, MasterNode, ReduceOp


def ranks(comms):
    return [comm.rank for comm in comms]


def lose(comms, lost):
    """One leaves; the others learn of it in their next op."""
    comms.pop(lost).close()

    def reduce(comm, _):
        array = np.ones(10, np.float32)
        with pytest.raises(pccl.PeerLostError):
            comm.all_reduce(array, op=ReduceOp.SUM, timeout=PATIENCE)

    on_all(comms, reduce)


# ---- ranks ----


def test_ranks_are_the_order_of_joining():
    with team([0, 0, 0, 0]) as comms:
        assert ranks(comms) == [0, 1, 2, 3]
        lose(comms, 1)
        assert ranks(comms) == [0, 1, 2]
        with Communicator(str(comms[0]._endpoint)) as fresh:
            admit(comms, fresh)
            comms.append(fresh)
            assert ranks(comms) == [0, 1, 2, 3]
            lose(comms, 0)
            assert ranks(comms) == [0, 1, 2]
            on_all(comms, lambda comm, _: comm.update_topology(timeout=PATIENCE))
            on_all(
                comms, lambda comm, _: comm.optimize_topology(timeout=PATIENCE)
            )  # another order of the ring is none of the ranks
            assert ranks(comms) == [0, 1, 2]
            assert [(comm.world_size, comm.global_world_size) for comm in comms] == [(3, 3)] * 3
            comms.pop()


def test_each_group_has_ranks_of_its_own():
    with team([5, 7, 5, 7, 5]) as comms:
        assert ranks(comms) == [0, 0, 1, 1, 2]
        assert [comm.world_size for comm in comms] == [3, 2, 3, 2, 3]
        assert {comm.global_world_size for comm in comms} == {5}


def test_ranks_survive_a_master():
    with MasterProcess(heartbeat_limit=1.0) as master:
        comms = [Communicator(master.address) for _ in range(3)]
        for at, comm in enumerate(comms):
            admit(comms[:at], comm)
        master.kill()
        master.start()
        on_all(comms, lambda comm, _: comm.update_topology(timeout=PATIENCE))
        assert ranks(comms) == [0, 1, 2]
        lose(comms, 0)
        assert ranks(comms) == [0, 1]
        for comm in comms:
            comm.close()


def test_before_connect_and_after_close():
    with MasterNode("127.0.0.1:0") as master:
        comm = Communicator(address_of(master))
        for read in (lambda: comm.rank, lambda: comm.world_size, lambda: comm.wait_for_peers(1)):
            with pytest.raises(pccl.UsageError, match="call connect first"):
                read()
        assert not comm.alive
        comm.connect(1)
        assert comm.alive
        assert (comm.rank, comm.world_size) == (0, 1)
        comm.close()
        assert not comm.alive
        with pytest.raises(pccl.UsageError, match="closed"):
            _ = comm.rank


# ---- a dead communicator looks like no run of one ----


def test_an_expelled_peer_is_told_by_every_call():
    with processes(2, heartbeat_limit=0.5) as [other, stopped]:
        stopped.signal(signal.SIGSTOP)
        assert other.ask("sum", 1000) == "RANK_CONNECTION_LOST"
        stopped.signal(signal.SIGCONT)
        stopped.ask("update")  # by now it has read that it was expelled
        state = ["state", 1, 1, 0]
        stopped.ask(*state)
        for call in (["world_size"], ["rank"], ["worlds"], ["update"], ["pending"], ["sync"], ["sum", 10], ["sum", 10_000_000]):
            assert stopped.ask(*call) == "MASTER_CONNECTION_FAILED", call
        assert stopped.ask("alive") is False
        assert other.ask("alive") is True
        assert other.ask("sum", 10) == "TOO_FEW_PEERS"


# ---- wait_for_peers ----


def test_waiting_ends_on_all_with_one_membership():
    with MasterNode("127.0.0.1:0") as master:
        comms = [Communicator(address_of(master)) for _ in range(4)]

        def join(comm):
            comm.connect(timeout=PATIENCE)
            comm.wait_for_peers(4, timeout=PATIENCE)
            return comm.rank, comm.global_world_size

        assert sorted(together(*(lambda comm=comm: join(comm) for comm in comms))) == [(rank, 4) for rank in range(4)]
        comms[0].wait_for_peers(3, timeout=0)  # more than enough: no vote, and no wait
        for comm in comms:
            comm.close()


def test_a_timeout_says_how_many_are_there():
    with team([0, 0]) as comms:

        def wait(comm, _):
            with pytest.raises(pccl.PCCLTimeoutError, match="2 of 3 peers are there"):
                comm.wait_for_peers(3, timeout=0.3)

        on_all(comms, wait)
        sums = [np.full(4, 1.0) for _ in comms]
        on_all(comms, lambda comm, rank: comm.all_reduce(sums[rank], op=ReduceOp.SUM, timeout=PATIENCE))  # usable
        assert all((one == 2).all() for one in sums)
        with Communicator(str(comms[0]._endpoint)) as third:
            joining = Background(third.connect, 1)
            on_all(comms, lambda comm, _: comm.wait_for_peers(3, timeout=PATIENCE))  # waits on
            joining.result()
            third.wait_for_peers(3, timeout=0)


def test_a_peer_that_does_not_wait_is_named_by_nobody_but_the_vote_stays_repeatable():
    with team([0, 0]) as comms:
        with pytest.raises(pccl.PCCLTimeoutError, match=r"2 of 3 peers are there.*call wait_for_peers again"):
            comms[0].wait_for_peers(3, timeout=0.1)
        waiting = Background(lambda: comms[0].wait_for_peers(3, timeout=PATIENCE))
        with Communicator(str(comms[0]._endpoint)) as third:
            joining = Background(third.connect, 1)
            comms[1].wait_for_peers(3, timeout=PATIENCE)
            waiting.result()
            joining.result()


@pytest.mark.parametrize("wrong", [-1, 2.5, "two", None])
def test_a_number_of_peers_that_is_none(wrong):
    with team([0]) as [comm], pytest.raises((TypeError, ValueError), match="peers must be"):
        comm.wait_for_peers(wrong)


def test_waiting_costs_next_to_nothing():
    """Of one core, in a peer and in a master: processor time, not that of the clock."""
    with MasterProcess() as master:

        def spent():
            ticks = Path(f"/proc/{master.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            usage = resource.getrusage(resource.RUSAGE_SELF)
            return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), usage.ru_utime + usage.ru_stime

        with Communicator(master.address) as comm:
            comm.connect(1)
            before, began = spent(), time.monotonic()
            with pytest.raises(pccl.PCCLTimeoutError, match="1 of 2 peers"):
                comm.wait_for_peers(2, timeout=3)
            seconds = time.monotonic() - began
            shares = [(now - then) / seconds for then, now in zip(before, spent(), strict=True)]
        assert max(shares) < 0.1, shares  # a busy loop takes 0.6 and 0.25
