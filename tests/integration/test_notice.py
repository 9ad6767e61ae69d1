"""Members that have to go leave between two steps: no operation of the others is aborted."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.utils.data
from leavers import KINDS, Team
from peers import PATIENCE, Background, MasterProcess, address_of, on_all, team

import pccl
from pccl import Communicator, MasterNode
from pccl.notice import Notice


@pytest.mark.parametrize("kind", KINDS)
def test_sigterm_to_one_of_four(kind):
    steps, last = 40, 12  # of DiLoCo two inner steps before an outer one
    with Team(kind, pause=0.002) as job:
        for rank, trainer in enumerate(job.trainers):
            trainer.tell("train", steps, last if rank == 1 else -1)
        told = [trainer.answer() for trainer in job.trainers]
    left = told.pop(1)
    assert left["left"]
    assert left["steps"] == (15 if kind == "diloco" else last + 1)
    for one in told:
        assert (one["left"], one["lost"], one["steps"]) == (False, 0, steps)
        together = 3 if kind == "diloco" else last + 1
        assert one["log"] == [4] * together + [3] * (len(one["log"]) - together)


def test_a_spare_takes_part_after_a_kill(monkeypatch):
    """With the state of the step: the model has one more step for each that it has made, and so has the spare's."""
    monkeypatch.setenv("PCCL_MAX_MEMBERS", "3")
    steps = 60
    with Team("ddp", 3, 0.01, "elastic") as job:
        where = job.trainers[0].ask("where")
        spare = job.add().tell("join", *where).tell("train", steps)
        assert spare.answer() is None
        for trainer in job.trainers[:2]:
            trainer.tell("train", steps)
        job.trainers[2].tell("train", 10)
        assert job.trainers[2].answer()["steps"] == 10
        job.trainers[2].kill()
        told = [trainer.answer() for trainer in (*job.trainers[:2], spare)]
        sums = [trainer.ask("checksum") for trainer in (*job.trainers[:2], spare)]
    assert [one["steps"] for one in told] == [steps] * 3
    assert 10 <= told[2]["first"] < steps
    assert sums[0] == sums[1] == sums[2]
    assert all(set(one["log"]) <= {2, 3} and one["log"][-1] == 3 for one in told)


# ---- loops of one's own ----


def vote(comm):
    """The members after a step boundary; 0: this one is none any more."""
    try:
        while comm.are_peers_pending(timeout=PATIENCE):
            comm.update_topology(timeout=PATIENCE)
    except pccl.Left:
        return 0
    return comm.world_size


def test_all_hear_who_leaves_and_when():
    with team([0, 0, 1]) as comms:
        comms[1].leave(within=60)
        for comm in comms:
            while not comm.leaving:
                time.sleep(0.001)
            [(uuid, seconds)] = comm.leaving.items()
            assert uuid == comms[1].uuid
            assert seconds is not None
            assert 0 < seconds <= 60
        comms[1].leave()
        while list(comms[2].leaving.values()) != [None]:
            time.sleep(0.001)
        assert on_all(comms, lambda comm, _: vote(comm)) == [1, 0, 1]
        assert [comm.leaving for comm in (comms[0], comms[2])] == [{}, {}]
        with pytest.raises(pccl.UsageError):
            comms[1].leave()


def test_all_leave_at_once():
    with team([0, 0, 0]) as comms:
        for comm in comms:
            comm.leave()
        assert on_all(comms, lambda comm, _: vote(comm)) == [0, 0, 0]


def test_the_next_master_hears_of_it():
    with MasterProcess(heartbeat_limit=1.0) as master:
        comms = [Communicator(master.address) for _ in range(3)]
        on_all(comms, lambda comm, _: (comm.connect(), comm.wait_for_peers(3, timeout=PATIENCE)))
        comms[0].leave(within=50)
        while not comms[1].leaving:
            time.sleep(0.001)
        master.kill()
        master.start()
        worlds = [3, 3, 3]
        while worlds == [3, 3, 3]:  # a vote that was open when the master was lost may pass before the announcement comes
            worlds = on_all(comms, lambda comm, _: vote(comm))
        assert worlds == [0, 2, 2]
        for comm in comms:
            comm.close()


def test_a_notice_before_connect():
    notice = Notice(file="/proc/self/status", every=0.001, within=30)
    assert notice.wait(PATIENCE)
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master)) as comm:
        comm.leaves_on(notice)
        comm.connect()
        assert vote(comm) == 0


# ---- notices ----


def test_a_file(tmp_path):
    with Notice(file=tmp_path / "go", every=0.001, within=100) as notice:
        assert not notice
        assert notice.seconds_left is None
        assert notice.reason == ""
        heard = threading.Event()
        notice.listen(lambda given: heard.set() if given is notice else None)
        (tmp_path / "go").touch()
        assert notice.wait(PATIENCE)
        assert heard.wait(PATIENCE)
        assert notice.given
        assert notice.reason == f"file {tmp_path / 'go'}"
        assert 0 < notice.seconds_left <= 100
        again = threading.Event()
        notice.listen(lambda _: again.set())
        assert again.is_set()


@pytest.mark.parametrize(("answer", "least", "most"), [(True, None, None), (45, 0, 45), (0.0, 0, 0), (-3, 0, 0)])
def test_a_query(answer, least, most, caplog):
    answers = iter([None, False, OSError("no metadata"), OSError("again"), answer])

    def poll():
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    notice = Notice(poll=poll, every=0.001)
    assert notice.wait(PATIENCE)
    assert notice.reason == "the query"
    if least is None:
        assert notice.seconds_left is None
    else:
        assert least <= notice.seconds_left <= most
    assert caplog.text.count("the query failed, which counts as no notice: OSError: no metadata") == 1


def test_odd_answers_are_no_notice(caplog):
    answers: Iterator[Any] = iter(["", "30", [], SystemExit(3), float("inf"), float("nan"), 10**400, True])

    def poll() -> Any:
        answer = next(answers)
        if isinstance(answer, SystemExit):
            raise answer
        return answer

    notice = Notice(poll=poll, every=0.001)
    assert notice.wait(PATIENCE)
    assert notice.seconds_left is None
    assert caplog.text.count("the query failed, which counts as no notice: ValueError: it returned '', which is no number") == 1


def test_a_listener_that_fails_stops_no_other(caplog):
    notice = Notice()
    heard: list[Notice] = []
    notice.listen(lambda _: 1 / 0)
    notice.listen(heard.append)
    notice.give("a test")
    assert heard == [notice]
    assert "a listener failed: ZeroDivisionError" in caplog.text


def test_a_far_end_is_announced_as_the_longest():
    with team([0, 0]) as comms:
        notice = comms[0].leaves_on(Notice())
        notice.give("a Unix time", 1.8e9)
        while not comms[1].leaving:
            time.sleep(0.001)
        assert 0 < comms[1].leaving[comms[0].uuid] <= 4_000_000
        comms[0].leave(within=float("inf"))
        with pytest.raises(TypeError, match="within must be a number"):
            comms[0].leave(within="soon")


def test_a_signal_once(monkeypatch):
    first = []
    before = signal.signal(signal.SIGUSR1, lambda *_: first.append("before"))
    try:
        with Notice(signal.SIGUSR1, within=9) as notice:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert notice.wait(PATIENCE)
            assert notice.reason == "SIGUSR1"
            assert not first
            monkeypatch.setattr("pccl.notice.SAME_NOTICE_SECONDS", PATIENCE)
            os.kill(os.getpid(), signal.SIGUSR1)  # of the same notice
            assert not first
            monkeypatch.setattr("pccl.notice.SAME_NOTICE_SECONDS", 0.0)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert first == ["before"]
        with Notice(signal.SIGUSR1):
            assert signal.getsignal(signal.SIGUSR1) is not before
        os.kill(os.getpid(), signal.SIGUSR1)
        assert first == ["before"] * 2
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_several_notices_of_a_signal(order):
    """Each signal is heard by those that are open, whichever were closed before."""
    before = signal.getsignal(signal.SIGUSR1)
    for closed in range(3):
        notices = [Notice(signal.SIGUSR1) for _ in range(3)]
        for number in order[:closed]:
            notices[number].close()
        os.kill(os.getpid(), signal.SIGUSR1)
        for number in order[closed:]:
            assert notices[number].wait(PATIENCE)
            assert notices[number].reason == "SIGUSR1"
        assert not any(notices[number] for number in order[:closed])
        for number in order[closed:]:
            assert signal.getsignal(signal.SIGUSR1) is not before
            notices[number].close()
        assert signal.getsignal(signal.SIGUSR1) is before


def test_a_notice_after_one_that_was_given_long_ago(monkeypatch):
    with Notice(signal.SIGUSR1) as first:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert first.wait(PATIENCE)
        monkeypatch.setattr("pccl.notice.SAME_NOTICE_SECONDS", -1.0)
        with Notice(signal.SIGUSR1) as second:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert second.wait(PATIENCE)


def test_a_handler_between_two_notices():
    """It is called as without notices, and what it calls in turn is no closed notice that ends the process."""
    called = []

    def between(number, frame):
        called.append(number)
        below(number, frame)

    before = signal.getsignal(signal.SIGUSR1)
    try:
        first = Notice(signal.SIGUSR1)
        below: Any = signal.signal(signal.SIGUSR1, between)
        with Notice(signal.SIGUSR1) as second:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert first.wait(PATIENCE)
            assert second.wait(PATIENCE)
            assert not called
        assert signal.getsignal(signal.SIGUSR1) is between
        first.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert called == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_notice_closed_in_another_thread():
    called = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: called.set())
    try:
        notice = Notice(signal.SIGUSR1)
        Background(notice.close).result()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert called.is_set()
        assert not notice
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_of_asyncio_is_called_once_for_each_signal(monkeypatch):
    monkeypatch.setattr("pccl.notice.SAME_NOTICE_SECONDS", -1.0)
    called: list[int] = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, called.append, 1)
        with Notice(signal.SIGUSR1) as notice:
            for count in range(1, 4):
                os.kill(os.getpid(), signal.SIGUSR1)
                while len(called) < count:
                    await asyncio.sleep(0.001)
            assert notice.given
        assert loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(main())
    assert called == [1] * 3


def test_a_file_is_seen_while_the_query_blocks(tmp_path):
    (tmp_path / "go").touch()
    answers = threading.Event()
    with Notice(file=tmp_path / "go", poll=answers.wait, every=0.001) as notice:
        assert notice.wait(PATIENCE)
        assert notice.reason.startswith("file ")
        answers.set()


def test_closed_notices_leave_nothing():
    files, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    with Notice(signal.SIGUSR1, file="/nowhere/go", poll=lambda: None, every=0.001):
        made = set(threading.enumerate()) - threads
        assert len(made) == 3
    for one in made:
        one.join(PATIENCE)
        assert not one.is_alive()
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize("source", ["notice", "notice-file", "notice-poll"])
def test_a_thread_that_the_system_refuses_leaves_nothing(monkeypatch, source):
    threads, handler = set(threading.enumerate()), signal.getsignal(signal.SIGUSR1)
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == f"pccl:{source}":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        Notice(signal.SIGUSR1, file="/nowhere/go", poll=lambda: None, every=0.001)
    assert signal.getsignal(signal.SIGUSR1) is handler
    for one in set(threading.enumerate()) - threads:
        one.join(PATIENCE)
        assert not one.is_alive()


def end_of_fork(act: Callable[[], object], sends: signal.Signals | None = None) -> int:
    """The exit code of a forked process that acts, 1 if that raises; then it gets the signal, or ends with 0."""
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            os.write(tells, b"1")
            time.sleep(0.0 if sends is None else PATIENCE)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(tells)
    with open(told, "rb") as opened:
        if opened.read(1) and sends is not None:
            os.kill(child, sends)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_handler_gives_it_at_any_moment():
    """Python calls a handler between two steps of the main thread, whatever locks that has, and so does a trace."""

    def hear():
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        logging.disable()
        for moment in itertools.count():
            heard: list[Notice] = []
            notice, steps = Notice(), itertools.count()

            def trace(frame, event, _, moment=moment, notice=notice, steps=steps):
                if frame.f_code.co_filename not in (pccl.notice.__file__, threading.__file__):
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode" and next(steps) == moment:
                    notice.give("a handler")
                return trace

            sys.settrace(trace)
            notice.listen(heard.append)
            notice.give("the program")
            notice.wait(0)
            notice.close()
            sys.settrace(None)
            assert heard == [notice]
            assert notice.reason in ("a handler", "the program")
            if moment == 0:
                assert notice.reason == "a handler"
            if next(steps) <= moment:
                break
        assert moment > 20

    assert end_of_fork(hear) == 0


def test_a_handler_gives_it_to_those_that_wait():
    with Notice() as notice:
        waits = [Background(notice.wait, PATIENCE) for _ in range(3)]
        before = signal.signal(signal.SIGUSR1, lambda *_: notice.give("a handler"))
        try:
            Background(lambda: os.kill(os.getpid(), signal.SIGUSR1))
            assert notice.wait(PATIENCE)
            assert [one.result() for one in waits] == [True] * 3
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_an_exception_in_one_wait_loses_no_other():
    """Each wait wakes the next one, and a handler may raise before it does."""
    once: pccl.notice._Once[None] = pccl.notice._Once()
    others = []

    def set_it():
        others.append(Background(once.wait, PATIENCE))
        once.set(None)

    def trace(frame, event, _):
        if frame.f_code is not pccl.notice._Once.wait.__code__:
            return None
        if event == "line" and once:
            raise KeyboardInterrupt
        return trace

    setter = threading.Timer(0.05, set_it)
    setter.start()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            once.wait(PATIENCE)
    finally:
        sys.settrace(None)
    setter.join()
    assert others[0].result() is True


def test_a_forked_process_ends_as_without():
    with Notice(signal.SIGTERM) as notice:
        assert end_of_fork(lambda: None, signal.SIGTERM) == -signal.SIGTERM
        assert not notice


def test_a_forked_process_has_its_own_notice():
    with Notice(signal.SIGTERM) as inherited:

        def hear():
            with Notice(signal.SIGTERM) as own:
                os.kill(os.getpid(), signal.SIGTERM)
                assert own.wait(PATIENCE)
                assert not inherited

        assert end_of_fork(hear) == 0
        assert end_of_fork(hear, signal.SIGTERM) == -signal.SIGTERM  # its own is closed
        os.kill(os.getpid(), signal.SIGTERM)
        assert inherited.wait(PATIENCE)


def test_more_signals_of_a_notice_where_sigpipe_kills():
    def hear():
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        before = set(threading.enumerate())
        with Notice(signal.SIGTERM, signal.SIGUSR1) as notice:
            watching = set(threading.enumerate()) - before
            os.kill(os.getpid(), signal.SIGTERM)
            for one in watching:
                one.join(PATIENCE)
            for number in (signal.SIGTERM, signal.SIGUSR1):
                os.kill(os.getpid(), number)
            assert notice.reason == "SIGTERM"

    assert end_of_fork(hear) == 0


def test_a_notice_that_nobody_keeps_hears_its_signal():
    def hear():
        heard = threading.Event()
        Notice(signal.SIGTERM).listen(lambda _: heard.set())
        gc.collect()
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.wait(PATIENCE)

    assert end_of_fork(hear) == 0


def test_the_signal_of_a_closed_communicator_ends_the_process():
    def close():
        with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master)) as comm:
            comm.leaves_on(signal.SIGTERM)
            comm.connect()

    assert end_of_fork(close, signal.SIGTERM) == -signal.SIGTERM


class Slow(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> int:
        time.sleep(0.01)
        return place


def ignore_sigterm(_: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def test_workers_of_a_loader_survive_a_signal_to_the_whole_job():
    """As docs/leaving.md has it."""

    def read():
        os.setpgrp()
        with Notice(signal.SIGTERM) as notice:
            seen = []
            for batch in torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2, worker_init_fn=ignore_sigterm):
                seen += batch.tolist()
                if len(seen) == 8:  # batches alternate between the workers: both ignore the signal now
                    os.killpg(0, signal.SIGTERM)
            assert notice
            assert seen == list(range(40))

    assert end_of_fork(read) == 0


def test_wrong_arguments():
    for arguments in ({"every": 0}, {"every": float("nan")}, {"within": -1}, {"within": float("inf")}):
        with pytest.raises(ValueError, match="must be a"):
            Notice(**arguments)
    name: Any = "SIGTERM"
    with pytest.raises(TypeError, match=r"such as signal.SIGTERM, not 'SIGTERM'"):
        Notice(name)
    number: Any = 3
    with pytest.raises(TypeError, match=r"poll must be a callable .*, not 3"):
        Notice(poll=number)
    with pytest.raises(ValueError, match="no process can catch SIGKILL"):
        Notice(signal.SIGTERM, signal.SIGKILL)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(ValueError, match="file must name a file"):
        Notice(file="")
    with pytest.raises(ValueError, match="made in the main thread"):
        Background(Notice, signal.SIGTERM).result()


def test_left_has_the_status_of_the_launcher(monkeypatch):
    assert pccl.Left().code == 0
    monkeypatch.setenv("PCCL_LEFT_STATUS", "75")
    assert pccl.Left().code == 75
