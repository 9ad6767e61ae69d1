"""How a fleet takes signals over and gives them back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pccl._host.processes import ENDING, Fleet


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    """Fails a test that leaves other handlers or a wakeup descriptor, and restores them."""
    handlers = {number: signal.getsignal(number) for number in ENDING}
    yield
    left = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    assert left == handlers
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def interrupt(monkeypatch) -> Callable[[str], None]:
    """Raises SIGINT once, before or after the next change of its handler."""
    change = signal.signal

    def install(place: str) -> None:
        places = [place]

        def changed(number: int, handler: Any) -> Any:
            if number == signal.SIGINT and places == ["before"]:
                places.clear()
                signal.raise_signal(signal.SIGINT)
            former = change(number, handler)
            if number == signal.SIGINT and places == ["after"]:
                places.clear()
                signal.raise_signal(signal.SIGINT)
            return former

        monkeypatch.setattr(signal, "signal", changed)

    return install


def fleet_telling(told: list[signal.Signals]) -> Fleet:
    return Fleet(lambda *_: None, told.append)


def test_a_signal_right_after_its_handler_is_there_is_told(interrupt):
    told: list[signal.Signals] = []
    interrupt("after")
    with fleet_telling(told) as fleet:
        fleet.turn(0)
    assert told == [signal.SIGINT]


def test_a_signal_right_before_its_handler_is_there_interrupts_and_leaves_nothing(interrupt):
    interrupt("before")
    with pytest.raises(KeyboardInterrupt):
        fleet_telling([]).__enter__()


def test_a_signal_right_after_its_handler_is_given_back_interrupts_and_leaves_nothing(interrupt):
    fleet = fleet_telling([]).__enter__()
    interrupt("after")
    with pytest.raises(KeyboardInterrupt):
        fleet.__exit__()


def test_a_signal_before_its_handler_is_given_back_belongs_to_the_fleet(interrupt):
    with fleet_telling([]):
        interrupt("before")
