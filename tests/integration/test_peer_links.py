"""What `comm.links()` says of the connections to other members."""

from __future__ import annotations

import time

import numpy as np
import pytest
from peers import PATIENCE, Background, address_of, form, on_all, team

import pccl
from pccl import Communicator, MasterNode, ReduceOp

ELEMENTS = 1 << 20


def reduce(comm, rank):
    comm.all_reduce(np.ones(ELEMENTS, np.float32), op=ReduceOp.SUM)


@pytest.mark.near
def test_one_link_for_each_other_member():
    with team([0, 0, 0, 0, 1]) as comms:
        on_all(comms[:4], reduce)
        for rank, comm in enumerate(comms[:4]):
            links = comm.links()
            assert [link.rank for link in links] == [other for other in range(4) if other != rank]
            assert [link.uuid for link in links] == [other.uuid for other in comms[:4] if other is not comm]
            for link in links:
                assert link.connected
                assert not link.far
                assert link.lanes_in_use + link.lanes_spare == link.lanes
                assert link.congestion_control
                assert link.address.startswith("127.0.0.1:")
                assert link.acked_bytes > 0
                assert link.shortest_round_trip_seconds > 0
                assert 0 <= link.retransmitted_share <= 1
                assert 0 <= link.window_limited_seconds + link.buffer_limited_seconds <= link.busy_seconds + 0.01
                assert ("shared memory" if link.by_memory else "2 ms" if link.lanes else "no lanes") in link.reason
                assert link.reason in str(link)
                assert ("bit/s" in str(link)) != link.by_memory
            # Two at least: those of who was a neighbour in the ring before are kept.
            assert sum(link.lanes > 0 for link in links) >= 2
        assert comms[4].links() == ()


def test_lanes_that_the_program_has_told(monkeypatch):
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", "0")
    with team([0, 0], lanes=2) as comms:
        (link,) = comms[0].links()
        assert (link.lanes, link.lanes_in_use) == (2, 2)
        assert "program" in link.reason


def test_a_member_has_links_as_soon_as_a_vote_has_returned():
    with MasterNode("127.0.0.1:0") as master:
        for _ in range(50):  # the thread of the data plane enters the epoch a moment later
            with Communicator(address_of(master), 0, 2) as one, Communicator(address_of(master), 0, 2) as other:
                one.connect()
                joining = Background(other.connect, 1)
                form(one, 2)
                assert [link.lanes for link in one.links()] == [2]
                joining.result()
                assert [link.lanes for link in other.links()] == [2]


def test_while_ops_run_and_a_member_leaves():
    with team([0, 0, 0]) as comms:
        going = True

        def work(comm, rank):
            array = np.ones(ELEMENTS, np.float32)
            while array[0]:  # all end after the same op
                array[0] = going
                comm.all_reduce(array, op=ReduceOp.MIN)

        workers = [Background(work, comm, rank) for rank, comm in enumerate(comms)]
        deadline = time.monotonic() + PATIENCE
        while not all(link.bytes_per_second > 0 for link in comms[0].links()):
            assert time.monotonic() < deadline
        going = False
        for worker in workers:
            worker.result()
        comms[2].close()
        while len(comms[0].links()) > 1:
            assert time.monotonic() < deadline
        with pytest.raises(pccl.UsageError):
            comms[2].links()


def test_not_connected():
    with pccl.Communicator("127.0.0.1:1") as comm, pytest.raises(pccl.UsageError):
        comm.links()
