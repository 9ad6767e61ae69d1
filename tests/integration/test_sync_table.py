"""The table 'situation and outcome' of shared state (contract 6.2), row by row, with real peers.

The same rows without sockets, each beside its neighbours, are in tests/unit/master/test_rounds_election.c; deaths at any
moment in tests/chaos/test_sync_trials.py.

| row | test here, unless another file is named |
|---|---|
| same content, same revision; or alone in the group | test_nothing_to_do, test_alone |
| two peers differ at the same revision | test_two_peers_differ |
| 1 of n entries differs | test_only_the_entry_that_differs_is_written |
| 2 of 3 agree, the odd one voted first | test_two_of_three_agree |
| member at E-1 with the winner's content | test_dragged_along |
| member at E-1 while the others change their content every step | test_behind_at_every_step |
| new group, one starts at 13 | test_resume_in_any_order |
| newcomer with 0 in a group at E | test_a_newcomer_among_others_at_e; test_sync.py: test_14... |
| one peer skips a number | test_ahead |
| all call again without adding 1 | test_repeat |
| all go back further than E-1 | test_all_too_far_back |
| names, order, data type, size or flag differ | test_masks |
| entry with allow_content_inequality | test_a_newcomer_keeps_what_may_differ; test_sync.py |
| SEND_ONLY with different contents, or below R | test_send_only |
| SEND_ONLY and RECEIVE_ONLY | test_send_and_receive |
| RECEIVE_ONLY that already has the content | test_sync.py: test_a_receiver_that_has_the_content_never_sends |
| all RECEIVE_ONLY | test_nobody_may_send |
| ENFORCE_POPULAR with any other | test_enforcers |
| one group breaks a rule, another does not | test_a_group_that_breaks_rules_touches_no_other |
| a sender, or a receiver, dies | chaos/test_sync_joins.py: test_a_donor_is_killed_in_the_middle; chaos/test_sync_trials.py |
| members join between rounds | test_members_join_between_rounds, test_newcomers_that_wait_do_not_count |
| all that took part in a commit have left | test_lost |
| the group has become empty | test_an_empty_group_forgets |
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from peers import PATIENCE, Background, address_of, admit, on_all, team, together, worlds
from states import ENFORCE, RECEIVE, SEND, Held, filled, same, sync_all, voted

from pccl import Communicator, MasterNode, PCCLError, Result, SharedState, SharedStateSyncStrategy, TensorInfo

EXPELLED = Result.INVALID_USAGE
NONE = Result.NO_SHARED_STATE_AVAILABLE
SIZE = 8000
COUNT = 1000

Member = tuple[int, int] | tuple[int, int, SharedStateSyncStrategy]
"""What it holds (a seed) and its revision; its strategy, ENFORCE_POPULAR unless told."""


def play(comms: list[Communicator], *members: Member) -> list[Any]:
    """One round: bytes received, revision and content (its seed) of each, or the error. Errors change neither; sums are equal."""
    seeds, revisions = [member[0] for member in members], [member[1] for member in members]
    held = [Held(filled(seed, COUNT), revision) for seed, revision in zip(seeds, revisions, strict=True)]
    infos = sync_all(comms, held, [member[2] if len(member) == 3 else ENFORCE for member in members])
    outcomes: list[Any] = []
    for one, info, seed, revision in zip(held, infos, seeds, revisions, strict=True):
        [content] = [of for of in {*seeds} if np.array_equal(one.arrays[0], filled(of, COUNT)[0])]
        if isinstance(info, Result):
            assert one.shared.revision == revision
            assert content == seed
            outcomes.append(info)
        else:
            assert info.rx_bytes in (0, SIZE)
            outcomes.append((info.rx_bytes, one.shared.revision, content))
    moved = [info for info in infos if not isinstance(info, Result)]
    assert sum(info.rx_bytes for info in moved) == sum(info.tx_bytes for info in moved)
    return outcomes


def kept(revision: int, content: int) -> tuple[int, int, int]:
    return (0, revision, content)


def got(revision: int, content: int) -> tuple[int, int, int]:
    return (SIZE, revision, content)


def beside(comms: list[Communicator]) -> Communicator:
    """Another one, of the same master."""
    return Communicator(f"127.0.0.1:{comms[0]._endpoint.port}")


def check_dead(comm: Communicator) -> None:
    for call in (comm.update_topology, comm.are_peers_pending, lambda timeout: worlds(comm)):
        with pytest.raises(PCCLError) as caught:
            call(timeout=PATIENCE)
        assert caught.value.result == Result.MASTER_CONNECTION_FAILED


@pytest.mark.parametrize("strategy", [ENFORCE, SEND])
def test_nothing_to_do(strategy):
    with team([0, 0, 0]) as comms:
        for revision in range(3):
            assert play(comms, *[(1, revision, strategy)] * 3) == [kept(revision, 1)] * 3
        # E has advanced: 4 would be too much, and 3 is right
        assert play(comms, (1, 3), (1, 3), (1, 4)) == [kept(3, 1), kept(3, 1), EXPELLED]


def test_alone():
    with team([0]) as comms:
        assert play(comms, (1, 7)) == [kept(7, 1)]
        assert play(comms, (2, 8, SEND)) == [kept(8, 2)]
        assert play(comms, (3, 10)) == [EXPELLED]
        check_dead(comms[0])


def test_two_peers_differ():
    with team([0, 0]) as comms:
        assert play(comms, (1, 0), (2, 0)) == [kept(0, 1), got(0, 1)]
        assert play(comms, (5, 1), (4, 1)) == [kept(1, 5), got(1, 5)]


def test_only_the_entry_that_differs_is_written():
    """The others may even be read-only memory: they are not."""
    with team([0, 0]) as comms:
        held = [Held(filled(1, *[COUNT] * 5)) for _ in comms]
        held[1].arrays[3][7] += 1
        watched = [array.tobytes() for array in held[1].arrays]
        for at, array in enumerate(held[1].arrays):
            array.flags.writeable = at == 3
        infos = sync_all(comms, held)
        assert [(info.tx_bytes, info.rx_bytes) for info in infos] == [(SIZE, 0), (0, SIZE)]
        assert [array.tobytes() == was for array, was in zip(held[1].arrays, watched, strict=True)] == [True] * 3 + [False, True]
        assert same(held)


@pytest.mark.parametrize("first", range(3))
def test_two_of_three_agree(first):
    """Whoever votes first: here the odd one is any member, and its vote is in before the others'."""
    with team([0, 0, 0]) as comms:
        held = [Held(filled(2 if rank == first else 1, COUNT)) for rank in range(3)]
        early = voted(held[first], comms[first])
        late = together(*(lambda rank=rank: held[rank].sync(comms[rank]) for rank in range(3) if rank != first))
        assert early.result().rx_bytes == SIZE
        assert [info.rx_bytes for info in late] == [0, 0]
        assert same(held)


def test_dragged_along():
    with team([0, 0, 0]) as comms:
        assert play(comms, (1, 4), (1, 4), (1, 4)) == [kept(4, 1)] * 3
        assert play(comms, (2, 5), (2, 4), (2, 5)) == [kept(5, 2)] * 3


def test_behind_at_every_step():
    with team([0, 0, 0]) as comms:
        assert play(comms, (1, 0), (1, 0), (1, 0)) == [kept(0, 1)] * 3
        for step in range(1, 4):
            assert play(comms, (1 + step, step), (step, step - 1), (1 + step, step)) == [
                kept(step, 1 + step),
                got(step, 1 + step),
                kept(step, 1 + step),
            ]


@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize("resumed", range(3))
def test_resume_in_any_order(resumed, others):
    """The votes come in one after another, in an order that begins or ends with the one that resumes."""
    for order in itertools.islice(itertools.permutations(range(3)), 0, None, 2):
        with team([0, 0, 0]) as comms:
            held = [Held(filled(9 if rank == resumed else 1, COUNT), 13 if rank == resumed else others) for rank in range(3)]
            running = [voted(held[rank], comms[rank]) for rank in order[:2]]
            held[order[2]].sync(comms[order[2]])
            for one in running:
                assert not isinstance(one.result(), Result)
            assert [one.shared.revision for one in held] == [13] * 3
            assert np.array_equal(held[0].arrays[0], filled(9, COUNT)[0])
            assert same(held)
            assert play(comms, *[(1, 14)] * 3) == [kept(14, 1)] * 3


def test_a_newcomer_among_others_at_e():
    with team([0, 0]) as comms:
        assert play(comms, (1, 8), (1, 8)) == [kept(8, 1)] * 2
        with beside(comms) as fresh:
            admit(comms, fresh)
            assert play([*comms, fresh], (2, 9), (2, 9), (7, 0)) == [kept(9, 2), kept(9, 2), got(9, 2)]


def test_ahead():
    with team([0, 0, 0]) as comms:
        assert play(comms, *[(1, 4)] * 3) == [kept(4, 1)] * 3
        assert play(comms, (2, 5), (2, 5), (2, 6)) == [kept(5, 2), kept(5, 2), EXPELLED]
        check_dead(comms[2])
        # nobody is at E
        assert play(comms[:2], (2, 5), (2, 7)) == [NONE, EXPELLED]
        assert play(comms[:1], (2, 6)) == [kept(6, 2)]


def test_repeat():
    with team([0, 0]) as comms:
        assert play(comms, (1, 3), (1, 3)) == [kept(3, 1)] * 2
        for _ in range(3):
            assert play(comms, (1, 3), (1, 3)) == [kept(3, 1)] * 2
        with beside(comms) as fresh:
            admit(comms, fresh)
            assert play([*comms, fresh], (1, 3), (1, 3), (2, 3)) == [kept(3, 1), kept(3, 1), got(3, 1)]
            assert play([*comms, fresh], (5, 4), (5, 4), (5, 4)) == [kept(4, 5)] * 3


def test_all_too_far_back():
    with team([0, 0]) as comms:
        assert play(comms, (1, 5), (1, 5)) == [kept(5, 1)] * 2
        assert play(comms, (1, 4), (1, 3)) == [NONE] * 2
        assert play(comms, (1, 6), (1, 6)) == [kept(6, 1)] * 2


def infos_of(kind: str) -> list[TensorInfo]:
    a, b = np.ones(4, np.float32), np.ones(4, np.float32)
    if kind == "type":
        b = np.ones(4, np.int32)
    if kind == "size":
        b = np.ones(5, np.float32)
    names = ["a", "c"] if kind == "name" else ["a", "b"]
    infos = [
        TensorInfo.from_numpy(a, names[0]),
        TensorInfo.from_numpy(b, names[1], allow_content_inequality=kind == "flag"),
    ]
    if kind == "fewer":
        return infos[:1]
    if kind == "not the first":
        return infos[1:]
    more = TensorInfo.from_numpy(np.ones(1), "z")
    if kind == "more":
        return [*infos, more]
    if kind == "in front":
        return [more, *infos]
    return infos[::-1] if kind == "order" else infos


def sync(comm: Communicator, state: SharedState) -> int:
    return comm.sync_shared_state(state, timeout=PATIENCE).rx_bytes


ODD = {
    "name": 'it has 2, its group 2; the first that differs is entry 1, counted from 0: here "c" (float32, count 4)',
    "order": 'it has 2, its group 2; the first that differs is entry 0, counted from 0: here "b" (float32, count 4)',
    "type": 'it has 2, its group 2; the first that differs is entry 1, counted from 0: here "b" (int32, count 4)',
    "size": 'it has 2, its group 2; the first that differs is entry 1, counted from 0: here "b" (float32, count 5)',
    "flag": 'the first that differs is entry 1, counted from 0: here "b" (float32, count 4, allow_content_inequality)',
    "fewer": 'it has 1, its group 2; the first that differs is entry 1, counted from 0: an entry is missing here after "a"',
    "more": 'it has 3, its group 2; the first that differs is entry 2, counted from 0: here "z" (float64, count 1)',
    "in front": 'it has 3, its group 2; the first that differs is entry 0, counted from 0: here "z" (float64, count 1)',
    "not the first": 'it has 1, its group 2; the first that differs is entry 0, counted from 0: here "b" (float32, count 4)',
}
"""What a member is told whose entries are odd in this way."""


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("odd", [0, 2])
def test_masks(kind, odd):
    with team([0, 0, 0]) as comms:
        states = [SharedState(infos_of(kind if rank == odd else "")) for rank in range(3)]

        running = [
            Background(lambda rank=rank: comms[rank].sync_shared_state(states[rank], timeout=PATIENCE)) for rank in range(3)
        ]
        error = running.pop(odd).error()
        assert error.result == EXPELLED
        assert "its entries (names, order, data types, sizes or flags) differ from those of its group: " in error.detail
        assert ODD[kind] in error.detail
        assert error.detail.endswith("; give all members the same entries in the same order")
        assert [one.result().rx_bytes for one in running] == [0, 0]
        check_dead(comms[odd])
        others = [comm for rank, comm in enumerate(comms) if rank != odd]
        assert play(others, (1, 1), (1, 1)) == [kept(1, 1)] * 2


NAMES = [str(number) for number in range(3000)]


# Every eighth of the hashes of 3000 beginnings fits into the vote.
@pytest.mark.parametrize(
    ("mine", "where", "named"),
    [
        ([*NAMES[:100], "new", *NAMES[101:]], "96 to 103", 'here one of "96" to "103"'),
        ([*NAMES[:-1], "new"], "2992 to 2999", 'here one of "2992" to "new"'),
        (NAMES[:2990], "2984 to 2990", 'here one of "2984" to the last, or missing after it'),
        (NAMES[:100], "96 to 100", 'here one of "96" to the last, or missing after it'),
    ],
    ids=["new in the middle", "new at the end", "fewer", "few"],
)
def test_masks_of_many_entries(mine, where, named):
    none = np.ones(0, np.float32)
    with team([0, 0, 0]) as comms:
        states = [SharedState([TensorInfo.from_numpy(none, name) for name in names]) for names in (NAMES, mine, NAMES)]
        running = [Background(sync, comm, state) for comm, state in zip(comms, states, strict=True)]
        error = running.pop(1).error()
        assert error.result == EXPELLED
        assert f"it has {len(mine)}, its group 3000; the first that differs is one of entries {where}," in error.detail
        assert f"counted from 0: {named}; give all members" in error.detail
        assert [one.result() for one in running] == [0, 0]


def test_a_long_name_leaves_room_for_what_to_do():
    names = ["x" * 1000, "ü" * 1000]
    with team([0, 0]) as comms:
        states = [SharedState([TensorInfo.from_numpy(np.ones(1, np.float32), name)]) for name in names]
        running = [Background(sync, comm, state) for comm, state in zip(comms, states, strict=True)]
        detail = running[1].error().detail
        assert 'entry 0, counted from 0: here "üüü' in detail
        assert detail.endswith("(float32, count 1); give all members the same entries in the same order")
        assert running[0].result() == 0


def test_a_newcomer_keeps_what_may_differ():
    with team([0, 0]) as comms:
        arrays = [filled(seed, COUNT, COUNT) for seed in (1, 2)]
        states = [
            SharedState([TensorInfo.from_numpy(own, "own", allow_content_inequality=True), TensorInfo.from_numpy(all_, "all")])
            for own, all_ in arrays
        ]
        states[0].revision = 6
        infos = on_all(comms, lambda comm, rank: comm.sync_shared_state(states[rank], timeout=PATIENCE))
        assert [info.rx_bytes for info in infos] == [0, SIZE]
        assert np.array_equal(arrays[1][0], filled(2, COUNT)[0])
        assert np.array_equal(arrays[1][1], arrays[0][1])
        assert [state.revision for state in states] == [6, 6]


@pytest.mark.parametrize(
    ("members", "outcomes"),
    [
        ([(1, 1, SEND), (2, 1, SEND), (2, 1, SEND)], [EXPELLED, kept(1, 2), kept(1, 2)]),
        ([(2, 1, SEND), (3, 1, SEND)], [kept(1, 2), EXPELLED]),
        ([(2, 1, SEND), (2, 0, SEND), (2, 0, SEND)], [kept(1, 2), EXPELLED, EXPELLED]),
    ],
)
def test_send_only(members, outcomes):
    with team([0] * len(members)) as comms:
        assert play(comms, *[(1, 0)] * len(members)) == [kept(0, 1)] * len(members)
        assert play(comms, *members) == outcomes
        for comm, outcome in zip(comms, outcomes, strict=True):
            if outcome is EXPELLED:
                check_dead(comm)


@pytest.mark.parametrize("sender", range(3))
def test_send_and_receive(sender):
    with team([0, 0, 0]) as comms:
        members = [(1, 2, SEND) if rank == sender else (2, 2, RECEIVE) for rank in range(3)]
        assert play(comms, *members) == [kept(2, 1) if rank == sender else got(2, 1) for rank in range(3)]


@pytest.mark.parametrize("contents", [(1, 1, 1), (1, 2, 1)])
def test_nobody_may_send(contents):
    with team([0, 0, 0]) as comms:
        assert play(comms, *[(content, 0, RECEIVE) for content in contents]) == [NONE] * 3
        assert play(comms, *[(1, 0)] * 3) == [kept(0, 1)] * 3
        assert play(comms, *[(content, 1, RECEIVE) for content in contents]) == [NONE] * 3
        assert play(comms, *[(1, 1)] * 3) == [kept(1, 1)] * 3


@pytest.mark.parametrize(
    ("members", "outcomes"),
    [
        ([(1, 0, SEND), (2, 0), (2, 0), (1, 0, RECEIVE)], [EXPELLED, kept(0, 2), kept(0, 2), EXPELLED]),
        ([(1, 0, SEND), (1, 0, SEND), (2, 0)], [EXPELLED, EXPELLED, kept(0, 2)]),
        ([(1, 0, RECEIVE), (2, 0), (3, 0)], [EXPELLED, kept(0, 2), got(0, 2)]),
    ],
)
def test_enforcers(members, outcomes):
    with team([0] * len(members)) as comms:
        assert play(comms, *members) == outcomes


def test_a_group_that_breaks_rules_touches_no_other():
    """Group 1 loses a member to its mask and another to its revision while group 0 syncs on."""
    with team([0, 0, 1, 1, 1]) as comms:
        assert play(comms, (1, 0), (1, 0), (5, 9), (5, 9), (5, 9)) == [kept(0, 1)] * 2 + [kept(9, 5)] * 3
        assert play(comms, (1, 1), (2, 1), (5, 10), (6, 12), (6, 10)) == [
            kept(1, 1),
            got(1, 1),
            kept(10, 5),
            EXPELLED,
            got(10, 5),
        ]
        left = [comms[rank] for rank in (0, 1, 2, 4)]
        assert play(left, (1, 2), (1, 2), (5, 7), (6, 8)) == [kept(2, 1)] * 2 + [NONE] * 2
        assert play(left, (1, 3), (2, 3), (5, 11), (5, 11)) == [kept(3, 1), got(3, 1)] + [kept(11, 5)] * 2


def test_members_join_between_rounds():
    with team([0]) as comms:
        fresh: list[Communicator] = []
        try:
            for revision in range(1, 5):
                members = [*comms, *fresh]
                contents = [(revision, revision)] * max(1, len(members) - 1) + [(50, 0)] * (len(members) > 1)
                outcomes = play(members, *contents)
                assert outcomes[:1] == [kept(revision, revision)]
                assert len(members) == 1 or outcomes[-1] == got(revision, revision)
                fresh.append(beside(comms))
                admit(members, fresh[-1])
        finally:
            for one in fresh:
                one.close()


def test_newcomers_that_wait_do_not_count():
    with team([0, 0]) as comms, beside(comms) as fresh:
        joining = Background(fresh.connect, 1)
        while not any(on_all(comms, lambda comm, _: comm.are_peers_pending(timeout=PATIENCE))):
            pass
        assert play(comms, (1, 0), (2, 0)) == [kept(0, 1), got(0, 1)]
        assert joining.running()
        on_all(comms, lambda comm, _: comm.update_topology(timeout=PATIENCE))
        joining.result()
        assert play([*comms, fresh], (1, 1), (1, 1), (3, 0)) == [kept(1, 1), kept(1, 1), got(1, 1)]


@pytest.mark.parametrize("resumed", [4, 99])
def test_lost(resumed):
    """Those that committed have left: fresh ones cannot go on by themselves, one from a checkpoint can, at any revision."""
    with team([0]) as comms:
        assert play(comms, (1, 7)) == [kept(7, 1)]
        with beside(comms) as one, beside(comms) as two:
            admit(comms, one)
            admit([comms[0], one], two)
            comms[0].close()
            assert play([one, two], (2, 0), (3, 0)) == [NONE] * 2
            assert play([one, two], (2, 0), (3, resumed)) == [got(resumed, 3), kept(resumed, 3)]
            assert play([one, two], (4, resumed + 1), (4, resumed + 1)) == [kept(resumed + 1, 4)] * 2


@pytest.mark.parametrize("revision", [0, 3, 70])
def test_an_empty_group_forgets(revision):
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master), 1) as other:
        other.connect(1)  # so that the run goes on
        with Communicator(address_of(master), 0) as first:
            admit([other], first)
            assert play([first], (1, 40)) == [kept(40, 1)]
        other.update_topology(timeout=PATIENCE)  # it counts itself alone now
        with Communicator(address_of(master), 0) as second:
            admit([other], second)
            assert play([second], (2, revision)) == [kept(revision, 2)]
