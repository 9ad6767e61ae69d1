"""Journals of calls with several steps: what a repetition gets from the call that was cut short."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from pccl import PCCLTimeoutError, PeerLostError, Result, UsageError
from pccl._ops.journal import Journal

TIMEOUT = PCCLTimeoutError(Result.TIMED_OUT, "all_reduce")

LOSS = PeerLostError(Result.RANK_CONNECTION_LOST, "all_reduce")


class AlarmError(Exception):
    """What the handler of a signal may raise."""


class Comm:
    """What a journal asks of a Communicator."""

    def __init__(self, uuid: int = 1) -> None:
        self.uuid = uuid
        self._handle = SimpleNamespace(closed=False)


class Exchange:
    """A call of three steps. The second of them sums up lists, and raises `error` if there is one."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.error: BaseException | None = None
        self.made: list[str] = []
        self.lists: list[list[int]] = []

    def _add(self, values: list[int], timeout: float | None) -> str:
        self.made.append(f"sum in {timeout} s")
        self.lists.append(values)
        if self.error is not None:
            raise self.error
        values[:] = [sum(values)]
        return "all"

    def _note(self, text: str) -> str:
        self.made.append(text)
        return text

    def run(self, comm: Any, values: list[int], *, name: str = "exchange", of: str = "", timeout: float = 1) -> Any:
        with self.journal.call(comm, name, of):
            first = self.journal.once(self._note, f"begin {values}")
            second = self.journal.step(self._add, list(values), timeout)
            return first, second, self.journal.once(self._note, "end")


@pytest.fixture
def exchange() -> Exchange:
    return Exchange(Journal())


@pytest.mark.parametrize("error", [TIMEOUT, KeyboardInterrupt(), AlarmError()])
def test_a_repetition_goes_on_with_the_values_of_the_first_call(exchange, error):
    comm = Comm()
    exchange.error = error
    for _ in range(2):
        with pytest.raises(type(error)):
            exchange.run(comm, [1, 2])
    assert exchange.journal.cut_short == "exchange"
    exchange.error = None
    assert exchange.run(comm, [5, 6], timeout=9) == ("begin [1, 2]", ("all", [3]), "end")
    assert exchange.made == ["begin [1, 2]", "sum in 1 s", "sum in 1 s", "sum in 9 s", "end"]
    assert exchange.lists[0] is exchange.lists[2]
    assert exchange.journal.cut_short == ""
    assert exchange.run(comm, [5, 6]) == ("begin [5, 6]", ("all", [11]), "end")


@pytest.mark.parametrize("error", [LOSS, ValueError("timeout must be None or a number")])
def test_any_other_error_ends_the_call(exchange, error):
    comm = Comm()
    exchange.error = error
    with pytest.raises(type(error)):
        exchange.run(comm, [1, 2])
    assert exchange.journal.cut_short == ""
    exchange.error = None
    assert exchange.run(comm, [5, 6]) == ("begin [5, 6]", ("all", [11]), "end")


def cut_short(exchange: Exchange, comm: Comm, **named: Any) -> None:
    exchange.error = PCCLTimeoutError(Result.TIMED_OUT, "all_reduce")  # not one that keeps frames of other tests
    with pytest.raises(PCCLTimeoutError):
        exchange.run(comm, [1, 2], **named)
    exchange.error = None


def test_another_call_is_refused_until_the_repetition(exchange):
    comm = Comm()
    cut_short(exchange, comm, name="snapshot", of="of step 5")
    for other in ({"name": "restore"}, {"name": "snapshot", "of": "of step 6"}):
        with pytest.raises(UsageError, match="snapshot of step 5 was cut short"):
            exchange.run(comm, [5, 6], **other)
    assert exchange.run(comm, [5, 6], name="snapshot", of="of step 5")[1] == ("all", [3])
    assert exchange.run(comm, [5, 6], name="restore")[1] == ("all", [11])


@pytest.mark.parametrize("dropped", [False, True])
def test_another_call_takes_the_place_of_one_that_nobody_waits_for(exchange, dropped):
    comm = Comm()
    found: list[int] = []

    def begin_and_stop(number: int) -> None:
        with exchange.journal.call(comm, "snapshot", "of step 5") as journal:
            found.append(journal.once(lambda: number))
            journal.release()
            raise KeyboardInterrupt

    for number in range(2):
        with pytest.raises(KeyboardInterrupt):
            begin_and_stop(number)
    if dropped:
        exchange.journal.drop_released()
        with pytest.raises(KeyboardInterrupt):
            begin_and_stop(2)
    assert found == [0, 0, 2][: 2 + dropped]
    assert exchange.journal.cut_short == ""
    assert exchange.run(comm, [5, 6])[1] == ("all", [11])


@pytest.mark.parametrize("change", ["uuid", "communicator", "close"])
def test_entries_do_not_outlive_the_connection(exchange, change):
    comm = Comm()
    cut_short(exchange, comm)
    if change == "uuid":
        comm.uuid = 2
    elif change == "close":
        comm._handle.closed = True
    else:
        comm = Comm()
    assert change == "communicator" or exchange.journal.cut_short == ""
    assert exchange.run(comm, [5, 6], name="other")[1] == ("all", [11])


def test_a_journal_keeps_no_communicator(exchange):
    comm = Comm()
    cut_short(exchange, comm)
    gone = weakref.ref(comm)
    del comm
    gc.collect()
    assert gone() is None
    assert exchange.journal.cut_short == ""


def test_a_second_thread_is_refused(exchange):
    comm = Comm()
    errors: list[BaseException] = []

    def other() -> None:
        try:
            exchange.run(comm, [5, 6])
        except UsageError as error:
            errors.append(error)

    with exchange.journal.call(comm, "exchange"):
        exchange.journal.once(int)
        assert exchange.journal.cut_short == ""
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "another thread makes the same call" in str(errors[0])
    assert exchange.run(comm, [5, 6])[1] == ("all", [11])
