"""The thread that answers for a communicator, when it cannot be started."""

from __future__ import annotations

import threading

import pytest

from pccl._watch.stacks import JOIN_SECONDS, Watch, answer


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_watch_whose_thread_never_began_ends(monkeypatch, error):
    def fail(_: threading.Thread) -> None:
        raise error

    monkeypatch.setattr(threading.Thread, "start", fail)
    watch, handle = Watch(answer, "pccl:stacks", JOIN_SECONDS), None
    with pytest.raises(type(error)):
        watch.start(handle)
    watch.join()


def test_a_watch_is_started_by_the_next_connect_when_there_were_too_many_threads(monkeypatch):
    tries: list[str] = []

    def fail(thread: threading.Thread) -> None:
        tries.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    watch, handle = Watch(answer, "pccl:stacks", JOIN_SECONDS), None
    for _ in range(2):
        with pytest.raises(RuntimeError):
            watch.start(handle)
    assert tries == ["pccl:stacks"] * 2
