"""Calls of several messages that a timeout or Ctrl-C cut short: their repeats go on where they were."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from peers import Background, on_all, team, until
from performers import PATIENCE

from pccl import Communicator, PCCLTimeoutError, UsageError
from pccl.data import ElasticSampler, ElasticShards, _exchange, _sampler
from pccl.state import Snapshots

SIZE = 61

SNAPSHOTS = Snapshots(copies=1, holder=False)

SHORT = 0.4


class Gate:
    """Holds one member up before its sum of this number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, comm: Communicator, number: int) -> None:
        self._open = threading.Event()
        numbers = itertools.count(1)
        modules: tuple[ModuleType, ...] = _exchange, _sampler
        real: Callable[..., Any] = _exchange.sum_over

        def sum_over(one: Communicator, *arguments: Any) -> Any:
            if one is comm and next(numbers) == number:
                assert self._open.wait(PATIENCE)
            return real(one, *arguments)

        for module in modules:
            monkeypatch.setattr(module, "sum_over", sum_over)

    def open(self) -> None:
        self._open.set()


def made(kind: str, comm: Communicator) -> Any:
    if kind == "stream":
        return ElasticShards("abcdefgh", lambda name: iter([name] * 5), 2, collate=list, communicator=comm)
    return ElasticSampler(range(SIZE), shuffle=False, communicator=comm)


def cut_short(call: Callable[[], object], times: int = 2) -> None:
    for _ in range(times):
        with pytest.raises(PCCLTimeoutError):
            call()


def interrupted(call: Callable[[], object]) -> None:
    """Makes the call, and interrupts it like Ctrl-C while it waits."""
    main = threading.main_thread()
    assert main is threading.current_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(SHORT, signal.pthread_kill, (main.ident, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


def all_read(sources: list[Any]) -> list[Any]:
    """What all members read together."""
    if isinstance(sources[0], ElasticShards):
        return sorted({shard for source in sources for shard in source._progress.plans[source._place]})
    return sorted(itertools.chain(*sources))


@pytest.fixture
def two() -> Iterator[list[Communicator]]:
    with team([0, 0]) as comms:
        yield comms


@pytest.mark.parametrize(("kind", "sums"), [("samples", 6), ("stream", 3)])
def test_a_sync_goes_on_where_it_was_cut_short(kind, sums, two, monkeypatch):
    for number in range(1, sums + 1):
        sources = on_all(two, lambda comm, _: made(kind, comm))
        with monkeypatch.context() as patched:
            gate = Gate(patched, two[1], number)
            late = Background(sources[1].sync)
            cut_short(lambda: sources[0].sync(timeout=SHORT))  # noqa: B023
            gate.open()
            sources[0].sync(timeout=PATIENCE)
            late.result()
        assert all_read(sources) == (list(range(8)) if kind == "stream" else [0, *range(SIZE)]), number


def test_a_sync_in_the_middle_of_a_pass_tells_once_what_is_in_flight(two, monkeypatch):
    samplers = on_all(two, lambda comm, _: made("samples", comm))
    on_all(samplers, lambda one, _: one.sync())
    read = [list(itertools.islice(iter(one), 7)) for one in samplers]
    on_all(samplers, lambda one, _: one.commit(4))
    gate = Gate(monkeypatch, two[1], 5)
    late = Background(samplers[1].sync)
    cut_short(lambda: samplers[0].sync(timeout=SHORT))
    for use in (lambda: next(iter(samplers[0])), lambda: samplers[0].mask(1), lambda: samplers[0].set_epoch(1)):
        with pytest.raises(RuntimeError, match=r"sync\(\) was cut short"):
            use()
    with pytest.raises(RuntimeError, match=r"sync\(\) was cut short"):
        samplers[0].load_state_dict(samplers[0].state_dict())
    gate.open()
    samplers[0].sync(timeout=PATIENCE)
    late.result()
    on_all(samplers, lambda one, _: one.commit(3))  # what was in flight
    rest = all_read(samplers)
    committed = sorted(itertools.chain(*read))
    assert committed == list(range(14))
    assert rest == [0, *range(14, SIZE)]  # 0 fills up the last step


@pytest.mark.parametrize("kind", ["samples", "stream"])
def test_a_commit_is_made_once(kind, two):
    sources = on_all(two, lambda comm, _: made(kind, comm))
    on_all(sources, lambda source, _: source.sync())
    before = sources[0].remaining
    readers = [source.batches() if kind == "stream" else iter(source) for source in sources]
    for reader in readers:
        for _ in range(4):
            next(reader)
    cut_short(lambda: sources[0].commit(timeout=SHORT))
    assert sources[0].remaining == before
    assert on_all(sources, lambda source, _: source.commit(timeout=PATIENCE)) == [False, False]
    assert sources[0].remaining == before - (2 if kind == "stream" else 8)
    assert sources[0].remaining == sources[1].remaining


def test_a_commit_that_finds_a_loss_goes_on_with_its_sync(monkeypatch):
    with team([0, 0, 0]) as comms:
        samplers = on_all(comms, lambda comm, _: made("samples", comm))
        on_all(samplers, lambda one, _: one.sync())
        read = [list(itertools.islice(iter(one), 5)) for one in samplers]
        comms[2].close()
        gate = Gate(monkeypatch, comms[1], 2)
        late = Background(samplers[1].commit)
        cut_short(lambda: samplers[0].commit(timeout=SHORT))
        gate.open()
        assert samplers[0].commit(timeout=PATIENCE) is True
        assert late.result() is True
        left = set(range(SIZE)).difference(*read[:2])
        assert all_read(samplers[:2]) == [0, *sorted(left)]  # 0 fills up the last step


def snapshot(comm: Communicator, value: int, step: int, timeout: float | None = None) -> bool:
    comm.snapshot({"x": torch.full((4,), float(value))}, step=step, part=str(value), snapshots=SNAPSHOTS, timeout=timeout)
    return comm.wait_for_snapshot()


def restore(comm: Communicator, value: int, timeout: float | None = None) -> tuple[int, list[float]] | None:
    target = {"x": torch.zeros(4)}
    found = comm.restore(target, part=str(value), snapshots=SNAPSHOTS, timeout=timeout)
    return found and (found.step, target["x"].tolist())


def check_snapshot(comms: list[Communicator], step: int) -> None:
    assert on_all(comms, lambda comm, rank: restore(comm, rank, PATIENCE)) == [(step, [float(rank)] * 4) for rank in (0, 1)]


def test_a_snapshot_waits_on_for_a_late_member(two):
    cut_short(lambda: snapshot(two[0], 0, 5, SHORT))
    with pytest.raises(UsageError, match="snapshot of step 5 was cut short"):
        snapshot(two[0], 0, 6, SHORT)
    with pytest.raises(UsageError, match="snapshot of step 5 was cut short"):
        restore(two[0], 0, SHORT)
    assert on_all(two, lambda comm, rank: snapshot(comm, rank, 5, PATIENCE)) == [True, True]
    assert on_all(two, lambda comm, rank: snapshot(comm, rank, 6, PATIENCE)) == [True, True]
    check_snapshot(two, 6)


def test_a_snapshot_goes_on_when_all_others_have_come_meanwhile(two):
    cut_short(lambda: snapshot(two[0], 0, 5, SHORT), 1)
    late = Background(snapshot, two[1], 1, 5)
    time.sleep(SHORT)
    assert snapshot(two[0], 0, 5)
    assert late.result()
    check_snapshot(two, 5)


def test_a_restore_waits_on_for_a_late_member(two):
    assert on_all(two, lambda comm, rank: snapshot(comm, rank, 3, PATIENCE)) == [True, True]
    cut_short(lambda: restore(two[0], 0, SHORT))
    with pytest.raises(UsageError, match="restore was cut short"):
        snapshot(two[0], 0, 4, SHORT)
    check_snapshot(two, 3)


@pytest.mark.parametrize("call", ["snapshot", "restore", "sync"])
def test_a_call_goes_on_after_ctrl_c(call, two):
    assert on_all(two, lambda comm, rank: snapshot(comm, rank, 3)) == [True, True]
    samplers = [made("samples", comm) for comm in two]
    calls: dict[str, Callable[[int], Any]] = {
        "snapshot": lambda rank: snapshot(two[rank], rank, 4),
        "restore": lambda rank: restore(two[rank], rank),
        "sync": lambda rank: samplers[rank].sync(),
    }
    interrupted(lambda: calls[call](0))
    ends = on_all(two, lambda _, rank: calls[call](rank))
    assert ends == {"snapshot": [True, True], "restore": [(3, [rank] * 4) for rank in (0.0, 1.0)], "sync": [None, None]}[call]


@pytest.mark.parametrize("ends", ["reconnect", "loss"])
def test_what_was_cut_short_before_a_change_is_of_no_later_call(ends):
    with team([0, 0, 0]) as comms:
        first = comms[:2]
        samplers = [made("samples", comm) for comm in comms]
        cut_short(lambda: snapshot(comms[0], 0, 5, SHORT), 1)
        cut_short(lambda: samplers[0].sync(timeout=SHORT), 1)
        if ends == "loss":
            comms[2].close()
            assert on_all(first, lambda comm, rank: snapshot(comm, rank, 5, PATIENCE)) == [True, True]
        else:
            joining = Background(comms[0].reconnect)
            until(lambda: all(len(comm.members) == 2 for comm in comms[1:]))
            on_all(comms[1:], lambda comm, _: comm.update_topology(timeout=PATIENCE))
            on_all(comms[1:], lambda comm, _: comm.wait_for_peers(3, timeout=PATIENCE))
            joining.result()
            assert samplers[0].mask(0).tolist() == []
            ready = on_all(comms, lambda comm, rank: snapshot(comm, rank, 7, PATIENCE))
            assert ready == [True] * 3
        here = samplers[:2] if ends == "loss" else samplers
        on_all(here, lambda one, _: one.sync(timeout=PATIENCE))
        assert sorted(set(all_read(here))) == list(range(SIZE))


def test_two_threads_cannot_make_one_call(two):
    waiting = Background(snapshot, two[0], 0, 5)
    until(lambda: any(vault.taking._lock.locked() for vault in list(two[0]._vaults.values())))
    with pytest.raises(UsageError, match="another thread makes the same call"):
        snapshot(two[0], 0, 5)
    assert snapshot(two[1], 1, 5)
    assert waiting.result()


def test_a_call_ends_with_its_communicator(two):
    sampler = made("samples", two[0])
    waiting = Background(sampler.sync)
    until(lambda: sampler._journal._steps)
    two[0].close()
    with pytest.raises(UsageError):
        waiting.result()
    assert not sampler._journal._steps
    with pytest.raises(UsageError, match="closed"):
        sampler.sync()
