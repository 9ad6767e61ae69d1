"""How many members a run has: at least, below which it waits, and at most, beyond which peers are spares."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from peers import PATIENCE, Background, PeerProcess, address_of, form, processes, together, until
from performers import Performer
from precopiers import CHANGED_PART, Precopier

import pccl
from pccl import Communicator, MasterNode


def test_after_a_kill_the_run_waits_for_the_replacement(monkeypatch):
    monkeypatch.setenv("PCCL_MIN_MEMBERS", "3")
    with processes(3) as peers:
        lost = peers.pop()
        lost.kill()
        for peer in peers:
            assert peer.ask("sum", 1000) == "RANK_CONNECTION_LOST"
        for peer in peers:
            peer.tell("pending")
        assert [peer.answer() for peer in peers] == [True, True]
        for peer in peers:
            peer.tell("update")
            peer.await_begin("update")
        fresh = PeerProcess(peers[0].address, value=8)
        peers.append(fresh)
        fresh.tell("connect", 1)
        assert [peer.answer() for peer in peers[:2]] == [[3, 3, 1, 3]] * 2
        assert fresh.answer() is None
        for peer in peers:
            peer.tell("sum", 1000)
        assert [peer.answer() for peer in peers] == [1 + 2 + 8] * 3


def test_a_spare_takes_the_place_of_a_killed_member(monkeypatch):
    monkeypatch.setenv("PCCL_MAX_MEMBERS", "2")
    with processes(2) as peers:
        spare = PeerProcess(peers[0].address, value=4)
        spare.tell("connect", 1)
        spare.await_begin("connect")
        for peer in peers:
            peer.tell("update")
        assert [peer.answer() for peer in peers] == [[2, 2, 1, 2]] * 2
        peers.pop().kill()
        assert peers[0].ask("sum", 1000) == "RANK_CONNECTION_LOST"
        while not peers[0].ask("pending"):
            pass
        assert peers[0].ask("update") == [2, 2, 1, 2]
        assert spare.answer() is None
        peers.append(spare)
        for peer in peers:
            peer.tell("sum", 1000)
        assert [peer.answer() for peer in peers] == [1 + 4] * 2


def test_a_spare_has_the_state_before_it_is_needed(monkeypatch, tmp_path):
    """It copies beside the steps and waits; after a kill its sync brings little more than what the steps have changed."""
    monkeypatch.setenv("PCCL_MAX_MEMBERS", "2")
    mebibytes, end = 16, tmp_path / "end"
    wanted = np.full(mebibytes << 18, 1, np.float32)  # the first member's
    kept = slice(wanted.size // CHANGED_PART, None)  # no step changes it
    large, steps = np.zeros_like(wanted), np.zeros(1, np.int64)
    with MasterNode("127.0.0.1:0") as master:
        members = [Performer(Precopier, at, ()) for at in range(2)]
        try:
            members[0].ask("join", address_of(master), mebibytes, 0)
            members[1].tell("join", address_of(master), mebibytes, 1)
            members[0].ask("form", 2)
            members[1].answer()
            for member in members:
                member.tell("train", str(end))
            state = pccl.SharedState([pccl.TensorInfo.from_numpy(large, "large"), pccl.TensorInfo.from_numpy(steps, "steps")])
            with Communicator(address_of(master)) as spare:
                joining = Background(lambda: spare.connect(state=state, timeout=PATIENCE))
                patience = time.monotonic() + PATIENCE
                while not np.array_equal(large[kept], wanted[kept]):
                    assert time.monotonic() < patience
                    time.sleep(0.01)
                assert joining.running()
                members.pop().kill()
                joining.result()
                info = spare.sync_shared_state(state, timeout=PATIENCE)
                assert info.rx_bytes < 10 * wanted.nbytes / CHANGED_PART
                assert steps[0] > 0
                assert spare.world_size == 2
            end.touch()
            assert members[0].answer()["losses"] in (1, 2)
        finally:
            for member in members:
                member.kill()


@contextlib.contextmanager
def two_and_one_that_waits(gives: bool, most: int, synced: bool = True) -> Iterator[tuple[list[np.ndarray], Communicator]]:
    """Two members, which give their state if `gives`, and a newcomer that copies it. Their arrays, and the first member."""
    arrays = [np.full(1 << 20, 1 + at, np.float32) for at in range(3)]
    states = [pccl.SharedState([pccl.TensorInfo.from_numpy(one, "large")]) for one in arrays]
    with MasterNode("127.0.0.1:0") as master, contextlib.ExitStack() as stack:
        comms = [stack.enter_context(Communicator(address_of(master), max_members=most)) for _ in range(3)]
        for comm, state in zip(comms[:2], states, strict=False):
            joined = Background(lambda c=comm, s=state: c.connect(state=s if gives else None))
            if comm is comms[1]:
                form(comms[0], 2)
            joined.result()
        if synced:
            together(*(lambda c=c, s=s: c.sync_shared_state(s) for c, s in zip(comms[:2], states, strict=False)))
        joining = Background(lambda: comms[2].connect(state=states[2]))
        try:
            yield arrays, comms[0]
        finally:
            comms[2].close()
            joining.error()


def joins(comm: Communicator, does: str) -> tuple[str, ...] | None:
    """What the newcomer lacks that does this; None: it does something else."""
    return next((one.missing for one in comm.diagnose().joiners if one.does == does), None)


@pytest.mark.parametrize(("most", "does", "name"), [(2, "waits as a spare", "spare"), (0, "waits to be admitted", "precopy")])
def test_a_newcomer_that_gets_no_state_beforehand_is_told(most, does, name, caplog):
    with two_and_one_that_waits(gives=False, most=most) as (_, comm):
        until(lambda: joins(comm, does) == (name,))
        until(lambda: len([one for one in caplog.messages if "holds little of the state" in one]) == 1)


def test_who_waits_while_there_is_no_state_lacks_none(caplog):
    with two_and_one_that_waits(gives=True, most=2, synced=False) as (_, comm):
        until(lambda: joins(comm, "waits as a spare") is not None)
        assert joins(comm, "waits as a spare") == ()
        assert "holds little" not in caplog.text


def test_a_spare_of_a_state_that_changes_faster_than_it_is_copied_is_told_until_it_has_it():
    ends = threading.Event()
    with two_and_one_that_waits(gives=True, most=2) as (arrays, comm):

        def train() -> None:
            while not ends.is_set():
                arrays[0][...] += 1
                arrays[1][...] += 1

        training = Background(train)
        try:
            until(lambda: joins(comm, "waits as a spare") == ("spare",))
        finally:
            ends.set()
            training.result()
        until(lambda: joins(comm, "waits as a spare") == ())
        assert any(np.array_equal(arrays[2], one) for one in arrays[:2])


def test_the_timeout_of_a_spare_says_what_it_waits_for():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master), max_members=1) as comm:
        comm.connect()
        with Communicator(address_of(master), max_members=1) as spare:
            text, patience = "", time.monotonic() + PATIENCE
            while "not admitted yet" not in text:  # it has not reached the master yet
                assert time.monotonic() < patience, text
                with pytest.raises(pccl.PCCLTimeoutError) as caught:
                    spare.connect(timeout=0.2)
                text = str(caught.value)
            assert "and spares until a member is gone" in text
            comm.close()
            spare.connect(timeout=PATIENCE)
            assert spare.world_size == 1


def test_waiting_for_the_minimum_ends_with_an_error_on_all():
    with MasterNode("127.0.0.1:0") as master:
        with Communicator(address_of(master), min_members=2, min_members_timeout=0.1) as comm:
            comm.connect()
            assert comm.are_peers_pending()
            text = "the run has 1 of at least 2 members, and has waited for 0 s; start more peers"
            with pytest.raises(pccl.TooFewPeersError, match=text):
                comm.update_topology(timeout=PATIENCE)
            fresh = Background(Communicator(address_of(master), min_members=2, min_members_timeout=0.1).connect)
            while comm.world_size == 1:
                with contextlib.suppress(pccl.TooFewPeersError):
                    comm.update_topology(timeout=PATIENCE)
            fresh.result()
            assert comm.world_size == 2


def test_all_peers_have_the_limits_of_the_run():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master), max_members=3) as comm:
        comm.connect()
        least, wait = {"max_members": 3, "min_members": 1}, {"max_members": 3, "min_members_timeout": 1}
        for others in ({}, {"max_members": 4}, least, wait):
            with (
                Communicator(address_of(master), **others) as other,
                pytest.raises(pccl.ConnectError, match="and the run 0, 3 and 600 s; give all peers the same"),
            ):
                other.connect(1)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"min_members": 3, "max_members": 2}, "min_members 3 is more than max_members 2"),
        ({"min_members": 1025}, "a run has at most 1024 members"),
        ({"max_members": 1025}, "a run has at most 1024 members"),
    ],
)
def test_limits_that_cannot_be(limits, text, monkeypatch):
    with pytest.raises(pccl.PCCLError, match=text):
        Communicator("127.0.0.1:1", **limits)
    for name, value in limits.items():
        monkeypatch.setenv(f"PCCL_{name.upper()}", str(value))
    if max(limits.values()) <= 1024:  # the environment's are ignored beyond that, with a line in the log
        with pytest.raises(pccl.PCCLError, match=text):
            Communicator("127.0.0.1:1")


@pytest.mark.parametrize("limits", [{"min_members": -1}, {"max_members": 2.5}, {"min_members_timeout": -1}])
def test_limits_of_another_kind(limits):
    with pytest.raises((ValueError, TypeError, AssertionError)):
        Communicator("127.0.0.1:1", **limits)
