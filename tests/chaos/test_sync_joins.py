"""Processes that join others which share a state, and one that dies while it gives."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
from performers import Performer
from state_actors import Blow, Content, Holder

SIZES = [1, 12_000_003, 0, 300_001]
TOTAL = sum(SIZES)
LEVELS = ["portable", "avx2", "avx512", "neon"]


@contextlib.contextmanager
def holders(environments: list[dict[str, str]]) -> Iterator[tuple[str, list[Performer]]]:
    """Processes that may become members, each with its environment, and a master of their own."""
    everyone = [Performer(Holder, at, (), one) for at, one in enumerate([{}, *environments])]
    try:
        yield everyone[0].ask("serve", 20.0), everyone[1:]
    finally:
        for one in everyone:
            one.kill()


def tell_all(processes: list[Performer], method: str, *arguments: object) -> list:
    for process in processes:
        process.tell(method, *arguments)
    return [process.answer() for process in processes]


def results(processes: list[Performer], known: list[Content]) -> list:
    """Of a sync of all, each with one member."""
    return [outcome for [outcome] in tell_all(processes, "sync", known)]


@pytest.mark.parametrize("same_host", ["0", "1"])
def test_two_joiners_at_once(same_host):
    """One update lets both in, or two; then both receive, from both that hold it, and go on with them."""
    old, new = Content(1), Content(2)
    with holders([{"PCCL_SAME_HOST_MEMORY": same_host}] * 4) as (address, processes):
        first, fresh = processes[:2], processes[2:]
        tell_all(first, "join", address, [4], SIZES, 2)
        tell_all(first, "hold", [old], [9])
        assert [one.revision for one in results(first, [old])] == [9, 9]
        tell_all(first, "step")
        for process in fresh:
            process.tell("join", address, [4], SIZES, 4)
        tell_all(first, "form", 4)
        assert [process.answer() for process in fresh] == [None, None]
        tell_all(fresh, "hold", [new], [0])
        for step in (1, 2):
            outcomes = results(processes, [old.step(), old.step().step()])
            assert [one.result for one in outcomes] == ["SUCCESS"] * 4
            assert [one.revision for one in outcomes] == [9 + step] * 4
            assert len({one.content for one in outcomes}) == 1
            assert outcomes[0].content is not None
            assert [one.rx_bytes for one in outcomes] == [0, 0, TOTAL, TOTAL] if step == 1 else [0] * 4
            assert sum(one.tx_bytes for one in outcomes) == sum(one.rx_bytes for one in outcomes)
            tell_all(processes, "step")


def test_joiners_during_asynchronous_reduces():
    """The program asks while its ops are under way whether somebody waits, awaits them, lets him in, and syncs."""
    with holders([{}] * 4) as (address, processes):
        first, fresh = processes[:2], processes[2:]
        tell_all(first, "join", address, [2], SIZES, 2)
        tell_all(first, "hold", [Content(1)], [0])
        for process in first:
            process.tell("train", 4, 4)
        for process in fresh:
            process.ask("join", address, [2], SIZES, 0)
            process.ask("hold", [Content(7)], [0])
            process.tell("train", 4, 4)
        trained = [one for process in processes for one in process.answer()]
    assert len({one.revision for one in trained}) == 1
    assert all(one.content == Content(1, steps=one.revision) for one in trained)
    for one in trained[:2]:
        assert one.received == [0] * len(one.received)
    for one in trained[2:]:
        assert one.received == [TOTAL] + [0] * (len(one.received) - 1)
    assert all(one.reduced > 0 for one in trained)


def test_all_cpu_levels_in_one_group():
    """The same hash of the same bytes on each, so that nothing moves; and what one of them sends, the others accept."""
    content, other = Content(3), Content(3, drift=5)
    with holders([{"PCCL_CPU_LEVEL": level, "PCCL_LOG_LEVEL": "NONE"} for level in LEVELS]) as (address, processes):
        levels = [process.ask("level") for process in processes]
        assert levels[0] == "portable"
        print("levels:", levels)
        tell_all(processes, "join", address, [1], SIZES, len(processes))
        tell_all(processes, "hold", [content], [0])
        hashes = tell_all(processes, "hashes")
        assert len({one for [one] in hashes}) == 1
        assert [one.rx_bytes for one in results(processes, [content])] == [0] * len(processes)
        for turn, giver in enumerate(processes):
            tell_all([process for process in processes if process is not giver], "hold", [content], [turn])
            giver.ask("hold", [other], [turn + 1])
            outcomes = results(processes, [content, other])
            assert {(one.result, one.revision, one.content) for one in outcomes} == {("SUCCESS", turn + 1, other)}
            assert sum(one.rx_bytes > 0 for one in outcomes) == len(processes) - 1
            now = tell_all(processes, "hashes")
            assert now == [now[0]] * len(processes)
            assert now[0] != hashes[0]


@pytest.mark.parametrize("same_host", ["0", "1"])
def test_a_donor_is_killed_in_the_middle(same_host):
    """Of three, at half of what is to be received: the others give the rest, and nothing is kept twice."""
    content = Content(1)
    sizes = [100 << 20, *SIZES]
    with holders([{"PCCL_SAME_HOST_MEMORY": same_host}] * 4) as (address, processes):
        tell_all(processes, "join", address, [2], sizes, 4)
        for at, process in enumerate(processes):
            process.ask("hold", [content if at < 3 else Content(2)], [5 if at < 3 else 0])
        for process in processes[:3]:
            process.tell("sync", [content])
        processes[3].tell("sync", [content], [Blow(processes[1].pid, signal.SIGKILL, "part", 0.5)])
        outcomes = [processes[at].answer()[0] for at in (0, 2, 3)]
        assert [one.result for one in outcomes] == ["SUCCESS"] * 3
        assert [one.content for one in outcomes] == [content] * 3
        assert [one.rx_bytes for one in outcomes] == [0, 0, sum(sizes)]
