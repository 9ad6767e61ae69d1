"""What the collectives by their names ask the library for, and what they refuse by themselves."""

from __future__ import annotations

import ctypes
import inspect
import pydoc
from uuid import UUID

import numpy as np
import pytest

import pccl._native
from pccl import Collective, CollectiveInfo, Communicator, Group, PCCLTimeoutError, PeerLostError, ReduceOp, Result
from pccl._ops.collectives import NUMBER_BITS, CollectiveOp
from pccl._peer.named import NamedCollectives

torch = pytest.importorskip("torch")
KINDS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "barrier", "send", "recv")
MEMBERS = tuple(UUID(int=number) for number in (7, 5, 9))


class SomeGroup(Group):
    def __init__(self, members=MEMBERS, rank=1):
        self.members, self.rank, self._pointer = tuple(members), rank, pccl._native.ffi.NULL


class SomeOp(CollectiveOp):
    """Ends as it is told."""

    def __init__(self, comm, call):
        super().__init__(comm, call.kind, call.group, call.name, survivors=call.survivors, call=call)
        self.comm, self.asked, self.ends = comm, call, comm.ends

    def begin(self, handle):
        if not self.c.kind:
            self.comm.launched.append(
                (self.asked.kind, {**self.asked.arguments, "tag": self.asked.name, "survivors": self._elastic})
            )
        self.c.kind = 1
        return 0

    def wait(self, timeout=None):  # type: ignore[override]
        end = self.ends.pop(0) if self.ends else CollectiveInfo(3, 0, 0)
        if isinstance(end, PCCLTimeoutError):
            raise end
        self.c.result = 0 if isinstance(end, CollectiveInfo) else end.result.value
        self._finish(self._handle)
        if isinstance(end, PeerLostError):
            raise self._error(end.result.value)
        return end


class SomeComm(NamedCollectives):
    members = _snapshot = MEMBERS

    def _has_sent(self, pair, tag):
        return self.posted(0, pair[0])

    def __init__(self):
        super().__init__("127.0.0.1:1")
        self.launched = []
        self.ends = []

    def group(self, members):
        return SomeGroup(members, tuple(members).index(MEMBERS[1]))

    def _prepare_call(self, call):
        return SomeOp(self, call)

    def posted(self, tag, member):
        return member == MEMBERS[2]


@pytest.fixture
def comm(monkeypatch):
    made = SomeComm()
    monkeypatch.setattr("pccl._core.groups.name_of", lambda handle, member: "")
    monkeypatch.setattr("pccl._ops.collectives.members_of", lambda handle: made.members)
    return made


GROUP = SomeGroup()


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def read_only(count):
    array = ones(count)
    array.flags.writeable = False
    return array


SUM = ReduceOp.SUM
REFUSED = [
    ("broadcast of a list", "broadcast", ([ones(1)],), {}, AssertionError, "one tensor, not a list"),
    ("broadcast of something", "broadcast", (b"abc",), {}, ValueError, "a numpy.ndarray or an array on a GPU, not bytes"),
    ("broadcast into read-only", "broadcast", (read_only(3),), {}, ValueError, "read-only"),
    ("root out of range", "broadcast", (ones(1), 3), {}, ValueError, "root is 3, but the group has 3 members: ranks 0 to 2"),
    ("root is no number", "broadcast", (ones(1), "0"), {}, TypeError, "root must be a whole number"),
    ("tag out of range", "broadcast", (ones(1),), {"tag": -1}, ValueError, "tag must be from 0"),
    ("group is none", "barrier", (), {"group": MEMBERS}, TypeError, "group must be a Group"),
    ("not contiguous", "broadcast", (ones(4, 4)[:, 1],), {}, AssertionError, "contiguous"),
    ("sparse", "broadcast", (torch.eye(3).to_sparse(),), {}, AssertionError, "sparse"),
    ("complex", "broadcast", (ones(3, dtype=np.complex64),), {}, AssertionError, "complex64 is not supported"),
    ("op is none", "reduce", (ones(3),), {"op": 0}, TypeError, "op must be a ReduceOp"),
    ("reduce: sizes", "reduce", (ones(3), ones(4)), {"op": SUM, "root": 1}, AssertionError, "send has 3 elements and recv 4"),
    ("reduce: types", "reduce", (ones(3), ones(3, dtype=int)), {"op": SUM, "root": 1}, AssertionError, "FLOAT and recv INT64"),
    ("all_gather: sizes", "all_gather", (ones(3), ones(12)), {}, AssertionError, "the part of this member in recv has 4"),
    ("all_gather: rest", "all_gather", (ones(3), ones(10)), {}, AssertionError, "10 elements, which do not divide into equal"),
    ("all_gather: counts", "all_gather", (ones(3), ones(9)), {"counts": [3, 3]}, ValueError, "counts has 2 entries"),
    ("all_gather: sum", "all_gather", (ones(3), ones(9)), {"counts": [3, 3, 4]}, AssertionError, "counts adds up to 10"),
    ("all_gather: list", "all_gather", (ones(3), [ones(3)] * 2), {}, AssertionError, "recv has 2 tensors"),
    ("all_gather: mixed list", "all_gather", (ones(1), [ones(1), ones(1, dtype=int), ones(1)]), {}, AssertionError, r"recv\[1\]"),
    ("empty list", "all_gather", (ones(1), []), {}, AssertionError, "recv is an empty list"),
    ("gather: no recv", "gather", (ones(3),), {"root": 1}, AssertionError, "recv is missing"),
    (
        "gather: unequal lists",
        "gather",
        (ones(3), [ones(1), ones(3), ones(2)], 1),
        {},
        AssertionError,
        "pass them as counts on all members",
    ),
    ("gather: own", "gather", (ones(3),), {"counts": [3, 4, 3]}, AssertionError, "the part of this member in recv has 4"),
    ("scatter: no send", "scatter", (None, ones(3)), {"root": 1}, AssertionError, "send is missing"),
    (
        "reduce_scatter: own",
        "reduce_scatter",
        (ones(9), ones(4)),
        {"op": SUM},
        AssertionError,
        "part of this member in send has 3",
    ),
    (
        "all_to_all: one counts",
        "all_to_all",
        (ones(9), ones(9)),
        {"send_counts": [3, 3, 3]},
        AssertionError,
        "must both have parts",
    ),
    ("all_to_all: sizes", "all_to_all", (ones(9), ones(12)), {}, AssertionError, "send has 9 elements and recv 12"),
    ("send to itself", "send", (ones(3), 1), {}, ValueError, "to is 1, the rank of this member itself"),
    ("recv of itself", "recv", (ones(3), 1), {}, ValueError, "source is 1, the rank of this member itself"),
    ("timeout", "barrier", (), {"timeout": -1}, ValueError, "timeout"),
]


@pytest.mark.parametrize(
    ("method", "tensors", "options", "kind", "words"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused(comm, method, tensors, options, kind, words):
    with pytest.raises(kind, match=words):
        getattr(comm, method)(*tensors, **{"group": GROUP, **options})
    assert not comm.launched


LAUNCHED = [
    ("broadcast", "broadcast", (ones(2, 3),), {"root": 2}, Collective.BROADCAST, {"count": 6, "root": 2}),
    ("reduce", "reduce", (ones(6),), {"op": SUM}, Collective.REDUCE, {"count": 6, "root": 0, "recv": 0, "op": SUM}),
    ("all_gather", "all_gather", (ones(2), ones(3, 2)), {}, Collective.ALL_GATHER, {"count": 2}),
    ("of counts", "all_gather", (ones(2), ones(6)), {"counts": (1, 2, 3)}, Collective.ALL_GATHER, {"recv_counts": [1, 2, 3]}),
    ("of a list", "all_gather", (ones(2), [ones(1), ones(2), ones(0)]), {}, Collective.ALL_GATHER, {"recv_counts": [1, 2, 0]}),
    ("of equal lists", "all_gather", (ones(2), [ones(2), ones(2), ones(2)]), {}, Collective.ALL_GATHER, {"count": 2}),
    ("reduce_scatter", "reduce_scatter", (ones(6), ones(2)), {"op": SUM}, Collective.REDUCE_SCATTER, {"count": 2, "op": SUM}),
    ("gather", "gather", (ones(2),), {}, Collective.GATHER, {"count": 2, "recv": 0}),
    ("gather of counts", "gather", (ones(2),), {"counts": [1, 2, 0]}, Collective.GATHER, {"recv_counts": [1, 2, 0]}),
    ("scatter of counts", "scatter", (None, ones(2)), {"counts": [1, 2, 0]}, Collective.SCATTER, {"send_counts": [1, 2, 0]}),
    ("all_to_all", "all_to_all", (ones(9), ones(9)), {}, Collective.ALL_TO_ALL, {"count": 3}),
    (
        "all_to_all of lists",
        "all_to_all",
        ([ones(1), ones(1), ones(1)], [ones(1), ones(1), ones(1)]),
        {},
        Collective.ALL_TO_ALL_V,
        {"send_counts": [1, 1, 1], "recv_counts": [1, 1, 1]},
    ),
    ("barrier", "barrier", (), {}, Collective.BARRIER, {"send": 0, "recv": 0, "survivors": True}),
    ("strict barrier", "barrier", (), {"survivors": False}, Collective.BARRIER, {"survivors": False}),
]


@pytest.mark.parametrize(
    ("method", "tensors", "options", "kind", "asked"), [row[1:] for row in LAUNCHED], ids=[r[0] for r in LAUNCHED]
)
def test_launched(comm, method, tensors, options, kind, asked):
    getattr(comm, method)(*tensors, group=GROUP, **options)
    [(launched, arguments)] = comm.launched
    assert launched is kind
    assert {name: arguments.get(name) for name in asked} == asked
    assert "recv_counts" in asked or "send_counts" in asked or not {"recv_counts", "send_counts"} & set(arguments)


def test_lists_that_lie_one_behind_the_other_are_used_where_they_lie(comm):
    whole = torch.arange(6.0)
    comm.all_gather(torch.ones(2), list(whole.split(2)), group=GROUP)
    assert comm.launched[0][1]["recv"] == whole.data_ptr()
    apart = [torch.ones(2) for _ in range(3)]
    comm.all_gather(torch.ones(2), apart[::-1], group=GROUP)
    assert comm.launched[1][1]["recv"] not in [tensor.data_ptr() for tensor in apart]


def test_tags(comm):
    def tag(method, *tensors, **options):
        getattr(comm, method)(*tensors, **{"group": GROUP, **options})
        return comm.launched[-1][1]["tag"]

    first = tag("barrier")
    assert tag("broadcast", ones(1)) == first  # one sequence for all kinds
    other = SomeGroup(MEMBERS[:2])
    assert tag("barrier", group=other) != first
    named = tag("barrier", tag=4)
    assert named not in (first, tag("barrier", tag=4, group=other))
    assert named == tag("barrier", tag=4)
    to, back = tag("send", ones(1), 0), tag("recv", ones(1), 0)
    assert len({to, back, tag("send", ones(1), 0, tag=3), tag("send", ones(1), 2)}) == 4
    assert all(0 <= arguments["tag"] < 1 << 64 for _, arguments in comm.launched)
    assert not any(arguments["tag"] % (1 << NUMBER_BITS) for _, arguments in comm.launched)


def timed_out():
    return PCCLTimeoutError(Result.TIMED_OUT, "wait")


def test_the_same_call_waits_on_after_a_timeout(comm):
    array, other = ones(3), ones(3)
    comm.ends[:] = [timed_out(), timed_out()]
    for _ in range(2):
        with pytest.raises(PCCLTimeoutError):
            comm.broadcast(array, group=GROUP, timeout=1)
    comm.broadcast(array, group=GROUP)
    assert len(comm.launched) == 1
    comm.broadcast(array, group=GROUP)
    comm.broadcast(other, group=GROUP)
    assert len(comm.launched) == 3


def test_an_error_tells_ranks_of_the_group_that_was_given(comm):
    comm.members = MEMBERS[:2]
    for call in (lambda: comm.barrier(group=GROUP), lambda: comm.recv(ones(1), 2, group=GROUP)):
        comm.ends[:] = [PeerLostError(Result.RANK_CONNECTION_LOST, "wait")]
        with pytest.raises(PeerLostError) as caught:
            call()
        assert caught.value.ranks == (2,)


def test_a_receive_from_any_beside_another_call_that_begins(comm):
    class Tag:
        """Equals no tag, and lets another thread begin a call when it is compared."""

        def __eq__(self, other: object) -> bool:
            comm._cut_short[(Collective.BARRIER, object())] = None
            return False

        __hash__ = object.__hash__

    comm._cut_short[(Collective.SEND, (), Tag())] = None
    assert comm.recv(ones(1), group=GROUP) == 2


def test_a_receive_from_any_source(comm):
    assert comm.recv(ones(1), group=GROUP) == 2
    comm.posted = lambda tag, member: False
    with pytest.raises(PCCLTimeoutError):
        comm.recv(ones(1), group=GROUP, timeout=0)
    comm.members = MEMBERS[1:2]
    with pytest.raises(PeerLostError) as caught:
        comm.recv(ones(1), group=GROUP)
    assert caught.value.ranks == (0, 2)


def test_done_and_repr(comm):
    comm.ends[:] = [timed_out()]
    handle = comm.barrier_async(group=GROUP)
    assert not handle.done()
    assert repr(handle) == "<CollectiveHandle of barrier: in flight>"
    assert handle.done()
    assert handle.wait().world_size == 3
    assert repr(handle) == "<CollectiveHandle of barrier: ended>"
    comm.ends[:] = [PeerLostError(Result.RANK_CONNECTION_LOST, "wait")]
    comm.members = MEMBERS[:2]
    assert comm.barrier_async(group=GROUP).done()


def test_parts_are_stored_once_the_collective_has_ended(comm):
    parts = [np.zeros(count, np.float32) for count in (1, 3, 2)]
    lists = [parts[0], parts[2].copy(), parts[1]]
    handle = comm.all_gather_async(ones(2), lists, group=GROUP)
    result = np.arange(1, 7, dtype=np.float32)
    ctypes.memmove(comm.launched[0][1]["recv"], result.ctypes.data, result.nbytes)
    assert not any(part.any() for part in lists)
    handle.wait()
    assert [part.tolist() for part in lists] == [[1], [2, 3], [4, 5, 6]]


@pytest.mark.parametrize("name", [*KINDS, "launch"])
def test_methods_have_the_texts_and_parameters_of_their_descriptions(name):
    method = getattr(Communicator, name)
    assert (method.__name__, method.__qualname__, method.__module__) == (name, f"NamedCollectives.{name}", "pccl._peer.named")
    assert method.__doc__
    returns = {"recv": "int", "launch": "CollectiveOp"}.get(name, "CollectiveInfo")
    assert inspect.signature(method).return_annotation == method.__annotations__["return"] == returns
    assert pydoc.render_doc(method, renderer=pydoc.plaintext).count(f"{name}(self, ") == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KINDS)
def test_the_methods_that_return_at_once_take_the_same_arguments_but_the_timeout(name):
    waits = dict(inspect.signature(getattr(Communicator, name)).parameters)
    assert waits.pop("timeout").default is None
    launches = inspect.signature(getattr(Communicator, f"{name}_async"))
    if name == "recv":  # of any member, only where it waits
        assert waits.pop("source").default is None
        launches = launches.replace(parameters=[one for one in launches.parameters.values() if one.name != "source"])
    assert dict(launches.parameters) == waits
    assert launches.return_annotation == "CollectiveHandle"


def test_arguments_that_a_collective_does_not_take_are_refused(comm):
    with pytest.raises(TypeError, match=r"broadcast\(\) got an unexpected keyword argument 'counts'"):
        comm.broadcast(ones(3), counts=[1], group=GROUP)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'timeout'"):
        comm.broadcast_async(ones(3), timeout=1, group=GROUP)


def test_a_signal_handler_that_makes_a_call_while_one_is_launched(comm, monkeypatch):
    """It runs on the thread that it interrupts."""
    launch = SomeOp.launch

    def interrupted(op):
        monkeypatch.setattr(SomeOp, "launch", launch)
        comm.barrier(group=GROUP, tag=2)
        op.launch()

    monkeypatch.setattr(SomeOp, "launch", interrupted)
    comm.barrier(group=GROUP, tag=1)
    assert [kind for kind, _ in comm.launched] == [Collective.BARRIER] * 2
