"""Who makes ops slow: real peers, one of which computes for longer, hangs or is stopped, or none."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import socket
import threading
import time
from uuid import UUID

import numpy as np
import pytest
from click.testing import CliRunner
from interrupts import alarms, interrupt
from peers import PATIENCE, Background, MasterProcess, on_all, processes, team

import pccl
from pccl import Diagnosis, FindingKind, ReduceOp
from pccl._native import ffi, lib
from pccl.cli import main

SMALL, LARGE = 1000, 1 << 20


def found(diagnosis):
    return {(finding.kind, finding.member) for finding in diagnosis.findings}


def kinds(diagnosis):
    return {finding.kind for finding in diagnosis.findings}


class Run:
    """Peers that compute and reduce until the end of the block; what each computes for can be changed."""

    def __init__(self, comms, elements, seconds):
        self.comms = comms
        self.seconds = [seconds] * len(comms)
        self._elements = elements
        self._going = True
        self._resume = threading.Event()

    def _work(self, comm, rank):
        array = np.ones(self._elements, np.float32)
        with comm, contextlib.suppress(pccl.PCCLError):
            going = True
            while going:
                if self.seconds[rank] is None:
                    self._resume.wait(PATIENCE)
                else:
                    time.sleep(self.seconds[rank])
                # All end after the same op.
                array[0] = self._going
                comm.all_reduce(array, op=ReduceOp.MIN)
                going = array[0] == 1

    def __enter__(self):
        self._workers = [Background(self._work, comm, rank) for rank, comm in enumerate(self.comms)]
        return self

    def __exit__(self, *_):
        self._going = False
        self._resume.set()
        for worker in self._workers:
            worker.result()

    def await_findings(self, wanted, of=0):
        """Asks until the answer is `wanted`; the last one fails the test."""
        deadline = time.monotonic() + PATIENCE
        while found(diagnosis := self.comms[of].diagnose()) != wanted:
            assert time.monotonic() < deadline, str(diagnosis)
            time.sleep(0.1)
        return diagnosis


@pytest.mark.parametrize("elements", [SMALL, LARGE], ids=["small", "large"])
def test_a_straggler_is_named(elements):
    with team([0, 0, 0]) as comms, Run(comms, elements, 0.01) as run:
        run.seconds[1] = 0.15
        diagnosis = run.await_findings({(FindingKind.STRAGGLER, comms[1].uuid)}, of=2)
        (finding,) = diagnosis.findings
        assert finding.other is None
        assert finding.value > 0
        assert 0 < finding.cost <= 1
        assert comms[1].uuid.hex[:8] in finding.text
        begins = {member.uuid: member.begins_seconds for member in diagnosis.members}
        assert max(begins, key=begins.__getitem__) == comms[1].uuid
        assert {member.uuid for member in diagnosis.members} == {comm.uuid for comm in comms}
        assert all(edge.entries > 0 for edge in diagnosis.edges if edge.late_seconds > 0)


def test_a_member_that_hangs_in_its_own_code_is_named_while_it_does():
    with team([0, 0, 0], heartbeat_limit=5) as comms, Run(comms, SMALL, 0.01) as run:
        deadline = time.monotonic() + PATIENCE
        # The first op of a run may wait for longer than any other.
        while not all(member.ops > 0 for member in comms[0].diagnose().members):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        run.seconds[2] = None
        diagnosis = run.await_findings({(FindingKind.HUNG, comms[2].uuid)})
        assert "hangs" in str(diagnosis)


def test_c_programs_get_the_figures():
    with team([0, 0]) as comms, Run(comms, SMALL, 0.01) as run:
        run.seconds[1] = 0.15
        run.await_findings({(FindingKind.STRAGGLER, comms[1].uuid)})
        out = ffi.new("pcclDiagnosis_t **")
        with comms[0]._handle as comm:
            assert lib.pcclDiagnose(comm, out) == 0
        figures = out[0]
        members = [UUID(bytes=bytes(figures.members[i].uuid.data)) for i in range(figures.member_count)]
        assert set(members) == {comm.uuid for comm in comms}
        assert (figures.peer_count, figures.edge_count, figures.counts_only) == (2, 2, False)
        late = next(figures.edges[i] for i in range(2) if members[figures.edges[i].other] == comms[1].uuid)
        assert members[late.member] == comms[0].uuid
        assert late.entries > 0
        assert late.late_s / late.entries > 0.1
        assert ffi.string(late.reason)
        lib.pcclDiagnosisFree(figures)
        lib.pcclDiagnosisFree(ffi.NULL)


@pytest.mark.parametrize("elements", [SMALL, LARGE], ids=["small", "large"])
def test_a_stopped_process_is_named_before_it_is_expelled(elements):
    with processes(3, heartbeat_limit=12) as peers:
        ids = [peer.ask("uuid") for peer in peers]
        for peer in peers:
            peer.tell("reduce_for", elements, 60.0)
        time.sleep(1)
        peers[1].signal(signal.SIGSTOP)
        address = peers[0].address
        deadline = time.monotonic() + PATIENCE
        while found(diagnosis := ask(address)) != {(FindingKind.HUNG, ids[1])}:
            assert time.monotonic() < deadline, str(diagnosis)
            assert len(diagnosis.members) == 3, "it was expelled before it was named"
            time.sleep(0.1)
        assert "hangs" in str(diagnosis)


def test_no_false_alarm_and_nobody_who_was_not_asked():
    with team([0, 0, 0, 1]) as comms:
        assert not comms[0].diagnose().findings
        with Run(comms[:3], SMALL, 0.02):
            time.sleep(2.5)
            deadline = time.monotonic() + PATIENCE
            # On a busy machine one of them may really begin later than the others, or stand still for a moment.
            while kinds(diagnosis := comms[1].diagnose()) - {FindingKind.STRAGGLER}:
                assert time.monotonic() < deadline, str(diagnosis)
                time.sleep(0.1)
            assert [member.group for member in diagnosis.members] == [0, 0, 0, 1]
            assert diagnosis.members[3].told_seconds is None
        comms[3].close()
        with pytest.raises(pccl.UsageError):
            comms[3].diagnose()


def test_the_matrix_outlives_the_loss_of_a_master():
    with MasterProcess() as master:
        comms = [pccl.Communicator(master.address) for _ in range(2)]
        on_all(comms, lambda comm, rank: (comm.connect(timeout=PATIENCE), comm.wait_for_peers(2, timeout=PATIENCE)))
        with Run(comms, SMALL, 0.01) as run:
            master.kill()
            master.start()
            deadline = time.monotonic() + PATIENCE
            while not told(comms):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            run.seconds[0] = 0.1
            run.await_findings({(FindingKind.STRAGGLER, comms[0].uuid)})


def test_what_was_told_last_is_told_again_after_the_loss_of_a_master():
    limit = 1.0
    with MasterProcess(heartbeat_limit=limit) as master, contextlib.ExitStack() as stack:
        comms = [stack.enter_context(pccl.Communicator(master.address)) for _ in range(2)]
        on_all(comms, lambda comm, rank: (comm.connect(timeout=PATIENCE), comm.wait_for_peers(2, timeout=PATIENCE)))
        ending = threading.Event()

        def work(comm, rank):
            array = np.ones(SMALL, np.float32)
            while array[0]:  # all end after the same op
                time.sleep(0.2 * rank)
                array[0] = not ending.is_set()
                comm.all_reduce(array, op=ReduceOp.MIN)

        workers = [Background(work, comm, rank) for rank, comm in enumerate(comms)]
        await_live(master.address, True)
        master.signal(signal.SIGSTOP)
        ending.set()
        for worker in workers:
            worker.result()
        time.sleep(2.5 * limit)  # both look for a master
        master.signal(signal.SIGCONT)
        await_live(master.address, False)


def await_live(address: str, live: bool) -> None:
    """Until the master knows of calls under way, or that there are none."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(pccl.ConnectionFailedError):
            members = ask(address).members
            if len(members) == 2 and any(member.live for member in members) == live:
                return
        assert time.monotonic() < deadline, members
        time.sleep(0.1)


def told(comms):
    """Whether both have told the master that serves now."""
    try:
        return all(member.told_seconds is not None for member in comms[0].diagnose().members)
    except pccl.ConnectionFailedError:
        return False


def ask(address: str) -> Diagnosis:
    return pccl._watch.diagnosis.diagnose_run(pccl._core.address.parse_endpoint(address))


def test_top():
    with team([0, 0]) as comms, Run(comms, LARGE, 0.01) as run:
        run.seconds[1] = 0.15
        run.await_findings({(FindingKind.STRAGGLER, comms[1].uuid)})
        address = str(comms[0]._endpoint)
        table = CliRunner().invoke(main, ["top", "--master", address, "--once"], env={"COLUMNS": "200"})
        assert table.exit_code == 0, table.output
        assert all(comm.uuid.hex[:8] in table.output for comm in comms)
        assert "straggler" in table.output
        printed = json.loads(CliRunner().invoke(main, ["top", "--master", address, "--once", "--json"]).output)
        assert len(printed["members"]) == 2
        assert {"kind", "member", "cost"} <= printed["findings"][0].keys()


def test_a_signal_ends_the_wait_for_a_master_that_is_silent():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = pccl._core.address.parse_endpoint(f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(pccl.ConnectError):
            pccl._watch.diagnosis.diagnose_run(endpoint, timeout=0.3)
        with alarms():
            assert interrupt(functools.partial(pccl._watch.diagnosis.diagnose_run, endpoint, timeout=3600), 0.05)


@pytest.mark.near
def test_info_shows_the_links_of_a_run(monkeypatch):
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", "0")
    with team([0, 0, 0]) as comms:
        address = str(comms[0]._endpoint)
        empty = CliRunner().invoke(main, ["info", "--master", address], env={"COLUMNS": "200"})
        assert "not reported their links yet" in empty.output
        with Run(comms, LARGE, 0.01):
            deadline = time.monotonic() + PATIENCE
            while len(links := json.loads(CliRunner().invoke(main, ["info", "--master", address, "--json"]).output)["links"]) < 3:
                assert time.monotonic() < deadline
            assert {"from", "to", "round_trip_seconds", "bytes_per_second", "retransmitted_share"} <= links[0].keys()
            assert links[0]["lanes"] > 0
            assert not links[0]["by_memory"]
            assert "2 ms" in links[0]["reason"]
            table = CliRunner().invoke(main, ["info", "--master", address], env={"COLUMNS": "200"})
            assert table.exit_code == 0, table.output
            assert all(comm.uuid.hex[:8] in table.output for comm in comms)
            assert "2 ms" in table.output
    with MasterProcess() as master:
        assert "serves no run" in CliRunner().invoke(main, ["info", "--master", master.address]).output
    assert "is a pccl master running there" in CliRunner().invoke(main, ["info", "--master", master.address]).output
    assert "--master" in CliRunner().invoke(main, ["info", "--master", "nonsense:port"]).output


@pytest.mark.near
def test_members_tell_that_tensors_pass_by_memory():
    with team([0, 0]) as comms, Run(comms, LARGE, 0.01):
        deadline = time.monotonic() + PATIENCE
        while not (edges := comms[0].diagnose().edges) or not all(edge.by_memory for edge in edges):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert all(edge.lanes == 0 and "shared memory" in edge.reason for edge in edges)


def test_the_root_of_a_broadcast_that_does_not_come_is_named():
    with team([0, 0, 0], heartbeat_limit=5) as comms:
        deadline = time.monotonic() + PATIENCE
        # The first op of a run may wait for longer than any other.
        while not all(member.ops > 0 for member in comms[0].diagnose().members):
            assert time.monotonic() < deadline
            on_all(comms, lambda comm, _: comm.all_reduce(np.ones(SMALL, np.float32), op=ReduceOp.SUM))
        arrays = [np.full(LARGE, rank, np.float32) for rank in range(3)]
        waiting = [Background(comms[rank].broadcast, arrays[rank], 1) for rank in (0, 2)]
        while found(diagnosis := comms[0].diagnose()) != {(FindingKind.HUNG, comms[1].uuid)}:
            assert time.monotonic() < deadline, str(diagnosis)
            time.sleep(0.1)
        comms[1].broadcast(arrays[1], 1)
        for one in waiting:
            one.result()
        assert all((array == 1).all() for array in arrays)
