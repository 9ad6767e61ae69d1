"""Whether all members hold the same state, bit for bit: what `Communicator.check_parity` and `replay` do.

A check goes in rounds, and each begins with a reduce that goes on without members that are lost. From it all survivors know who
is there and whether all digests are equal: in almost all calls that is the end. Otherwise they gather the hashes of all entries,
and each judges the same table: all that return, raise or repair do so alike. Whatever a loss cuts short leads to the next round.

With a fraction the first round compares one part of the bytes: that of the highest turn that any member has had, so newcomers
learn it in their first check. If the part differs the whole state is compared.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

import torch
from torch import nn

from pccl._core.calls import Deadline
from pccl._core.enums import DataType, ReduceOp
from pccl._core.errors import (
    ArgumentError,
    ParityError,
    PCCLError,
    PCCLTimeoutError,
    PeerLostError,
    Result,
    TooFewPeersError,
    UsageError,
    named,
)
from pccl._core.groups import Group
from pccl._core.library import _ffi
from pccl._core.names import name_of, peer_label
from pccl._core.results import ParityInfo
from pccl._core.tensors import is_expanded, is_numpy_array, is_torch_tensor, require_kind
from pccl._core.types import TensorInfo
from pccl._ops.collectives import Collective, tag_of
from pccl._peer.communicator import Communicator, roll
from pccl._peer.shared_state import SharedState
from pccl.state._entries import COMPILED
from pccl.state._local.module import _shareable

POLICIES = ("raise", "repair", "expel")

REPAIRS = 3
"""In one call: memory that differs after as many does not keep what is written to it."""

PARTS_MAX = 1 << 20

LABELS = 4
"""Of members that have passed other entries, in an error: at most so many."""

CUT_BYTES = 64
"""Entries are cut at multiples of it, from their beginning on: a whole number of elements of any type."""


def _number(text: str) -> int:
    """A digest of 64 bits, with sign."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


_UNSIGNED = (1 << 64) - 1
_TAG = _number("Communicator.check_parity") & _UNSIGNED
_TAG_OF_ROWS, _TAG_OF_REPAIR, _TAG_OF_INPUTS = (
    _number(f"check_parity {what}") & _UNSIGNED for what in ("rows", "repair", "replay")
)

Row = tuple[tuple[int, ...], ...]
"""What one member holds: its policy and its number of entries, and of each entry a hash of its form and that of its bytes."""


class Verdict(NamedTuple):
    """What a table of rows says. The members are numbered by their rows."""

    first: int
    """The first entry that differs."""
    majority: tuple[int, ...]
    """The members, more than half of all, that hold the same; empty: there are none."""
    minority: tuple[int, ...]
    """All others."""


def judge(rows: Sequence[Row]) -> Verdict | None:
    """Returns who differs from the majority; None: all rows are equal. The rows are of the same entries."""
    if all(row == rows[0] for row in rows):
        return None
    first = next(place for place, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1)
    popular = max(rows, key=rows.count)
    majority = tuple(at for at, row in enumerate(rows) if row == popular)
    if 2 * len(majority) <= len(rows):
        majority = ()
    return Verdict(first, majority, tuple(at for at in range(len(rows)) if at not in majority))


class _Held:
    """A state whose bytes are compared, and where they lie."""

    def __init__(self, state: Any) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.expanded: list[str] = []
        """Entries that cannot be written to, since several of their elements are one."""
        tensors = {} if isinstance(state, SharedState) else _named(state)
        self.state = state if isinstance(state, SharedState) else self._of_tensors(tensors)
        self.infos = self.state._tensor_infos
        self.texts = [_described(one, tensors.get(one.name, one._owner)) for one in self.infos]
        """By entry: its name, shape and type, which must be the same on all members, for errors."""

    def _of_tensors(self, tensors: Mapping[str, Any]) -> SharedState:
        infos = []
        for name, tensor in tensors.items():
            if not is_torch_tensor(tensor):
                if not is_numpy_array(tensor):
                    kind = type(tensor).__name__
                    raise TypeError(
                        f"entry {name!r} is neither a tensor nor an array, but {kind}; pass a flat dict of tensors by name"
                    )
                infos.append(TensorInfo.from_numpy(tensor, name))
                continue
            if tensor.layout is not torch.strided:
                raise TypeError(f"entry {name!r} is sparse; pass its indices and its values, as entries of their own")
            if hasattr(tensor, "full_tensor"):  # a DTensor
                raise TypeError(f"{name} is sharded, and no other member holds the same part; pass what all members hold alike")
            plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
            if plain.data_ptr() != tensor.data_ptr():
                self._copies.append((tensor.detach(), plain))
                if is_expanded(tensor):
                    self.expanded.append(name)
            infos.append(TensorInfo.from_torch(_shareable(plain), name))
        return SharedState(infos)

    def forms(self) -> list[int]:
        """By entry: a hash of its name, shape and type."""
        return [_number(f"{text} {one.allow_content_inequality}") for text, one in zip(self.texts, self.infos, strict=True)]

    def hashes(self) -> tuple[list[int], list[int]]:
        """The hash of the whole, and those of all entries, as numbers of 64 bits with signs, two for each."""
        whole, entries = _ffi.new("int64_t[]", 2), _ffi.new("int64_t[]", 2 * len(self.infos))
        unsigned = [_ffi.cast("uint64_t *", one) for one in (whole, whole + 1, entries)]
        self.state._hash_into("check_parity", *unsigned)
        return _ffi.unpack(whole, 2), _ffi.unpack(entries, 2 * len(self.infos))

    def hash_of_part(self, turn: int, parts: int) -> list[int]:
        """The hash of one of so many parts of all bytes that must be equal, as two such numbers."""
        self.state._collect("check_parity")
        sizes = [0 if one.allow_content_inequality else one.numel * one.dtype.itemsize for one in self.infos]
        infos = []
        for place, first, size in pieces_of(sizes, turn, parts):
            entry = self.infos[place]
            at, kind = entry.data_ptr + first, entry.device_type
            infos.append(
                TensorInfo(entry.name, at, numel=size, dtype=DataType.UINT8, device_type=kind, allow_content_inequality=False)
            )
        if not infos:
            return [0, 0]
        whole = _ffi.new("int64_t[]", 2)
        unsigned = _ffi.cast("uint64_t *", whole)
        SharedState(infos)._hash_into("check_parity", unsigned, unsigned + 1, _ffi.NULL)
        return [int(one) for one in whole]

    def store(self) -> None:
        """After bytes were received: brings them to where the program has them."""
        for tensor, copy in self._copies:
            tensor.copy_(copy)
        for scalar in self.state._scalars:
            scalar.store()


def _described(info: TensorInfo, tensor: Any) -> str:
    """An entry, by its tensor or array if there is one: several types of torch travel as one of the core."""
    if tensor is None:
        return f"{info.name!r} ({info.numel} x {info.dtype.name})"
    return f"{info.name!r} ({str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)})"


def pieces_of(sizes: Sequence[int], turn: int, parts: int) -> list[tuple[int, int, int]]:
    """Returns one of so many parts of entries of these sizes in bytes: the entry's number, where in it a piece begins, its size.

    Turns from any one on, as many as parts, have each byte exactly once.
    """
    total = sum(sizes)
    begin, end = (total * one // parts for one in (turn % parts, turn % parts + 1))
    found = []
    before = 0
    for place, size in enumerate(sizes):
        first, last = (size if cut >= before + size else max(cut - before, 0) // CUT_BYTES * CUT_BYTES for cut in (begin, end))
        if first < last:
            found.append((place, first, last - first))
        before += size
    return found


def _named(state: Any) -> Mapping[str, Any]:
    if isinstance(state, nn.Module):
        return {f"parameter/{name.replace(COMPILED, '')}": one for name, one in state.named_parameters()}
    if isinstance(state, Mapping):
        return state
    kind = type(state).__name__
    raise TypeError(f"state must be a SharedState, a torch.nn.Module or a dict of tensors by name, not {kind}")


_making = threading.RLock()


class Kept:
    """What a communicator keeps of its checks."""

    def __init__(self) -> None:
        self.turns: dict[tuple[Any, int], int] = {}
        """How many parts were compared, by group and state."""
        self.under_way: dict[Any, _Check] = {}
        """Checks that a timeout or a signal has cut short, by group."""


def check_parity(
    comm: Communicator,
    state: Any,
    policy: str,
    *,
    fraction: float = 1.0,
    group: Group | None = None,
    timeout: float | None = None,
    call: str = "check_parity",
) -> ParityInfo:
    """Compares the state of members; see Communicator.check_parity. `call`: what errors name."""
    require_policy(policy)
    deadline = Deadline(timeout)
    parts = _parts_of(fraction)
    if group is not None:
        require_kind("group", group, Group)
    held = state if isinstance(state, _Held) else _Held(state)
    if policy == "repair":
        for name in held.expanded:
            raise ArgumentError(f"entry {name!r} is expanded and cannot be repaired; pass its clone(), or another policy")
        for info in held.infos:
            if info.read_only:
                raise ArgumentError(f"entry {info.name!r} is read-only and cannot be repaired; pass another policy")
    kept = _kept(comm)
    check = _Check(comm, kept, held, policy, parts, group, call)
    if policy != "raise":  # two have no majority
        with named(call):
            comm._note_protections(parity=(comm.world_size if group is None else len(group.members)) < 3)
    begun = kept.under_way.setdefault(check.who, check)
    if begun.label != check.label:
        raise _usage("a check of another state, policy or fraction was cut short; repeat that call first")
    with named(call):
        return begun.advance(deadline)


def _kept(comm: Any) -> Kept:
    """Returns what a communicator keeps of its checks, and makes it at the first check. Any thread may call it."""
    with _making:
        found: Kept = comm._parity or Kept()
        comm._parity = found
        return found


def require_policy(policy: object) -> None:
    """ArgumentError: it is none."""
    if policy not in POLICIES:
        raise ArgumentError(f"policy must be one of {', '.join(map(repr, POLICIES))}, not {policy!r}")


def _parts_of(fraction: float) -> int:
    """In how many calls all is compared."""
    try:
        fits = 1 / PARTS_MAX <= fraction <= 1
    except TypeError:
        fits = False
    if not fits:
        raise ArgumentError(f"fraction must be a number from {1 / PARTS_MAX:.0e} to 1, not {fraction!r}")
    return math.ceil(1 / fraction - 1e-6)


Call = Callable[[float | None], Any]
"""What a check waits for: called with the seconds that are left, and again where these do not suffice."""


class _Check:
    """One call of `check_parity`, and its repetitions after a timeout."""

    def __init__(
        self, comm: Communicator, kept: Kept, held: _Held, policy: str, parts: int, group: Group | None, call: str
    ) -> None:
        self._comm = comm
        self._kept = kept
        self._held = held
        self._policy = policy
        self._name = call
        self._parts = parts
        self._group = group
        self.who = None if group is None else group.members
        self._forms = held.forms()
        self.label = _number(f"{policy} {parts} {self._forms}")
        self._found = ParityInfo(1)  # of the first round in which members differ
        self._steps = self._rounds()
        self._call: Call | None = None

    def advance(self, deadline: Deadline) -> ParityInfo:
        """Goes on to the end. PCCLTimeoutError: call it again."""
        try:
            self._call = self._call or next(self._steps)
            while True:
                try:
                    told = self._call(deadline.remaining())
                except PCCLTimeoutError:
                    raise
                except Exception as error:
                    self._call = self._steps.throw(error)
                else:
                    self._call = self._steps.send(told)
        except StopIteration as end:
            found: ParityInfo = end.value
            return found
        finally:
            if inspect.getgeneratorstate(self._steps) == inspect.GEN_CLOSED:
                self._kept.under_way.pop(self.who, None)

    def _rounds(self) -> Generator[Call, Any, ParityInfo]:
        parts, repairs = self._parts, 0
        turn = self._kept.turns.get((self.who, self.label), 0) if parts > 1 else 0
        while True:
            digest, entries = self._held.hashes() if parts == 1 else (self._held.hash_of_part(turn, parts), [])
            living, most, least = yield from self._meet([self._parts, turn, *digest, self.label, len(self._forms)])
            if most[0] != least[0]:
                raise _usage(f"the members have passed different fractions (1/{most[0]}, 1/{least[0]}); pass the same on all")
            if most[1] != least[1]:
                turn = most[1]
                continue
            if self._parts > 1:
                self._kept.turns[self.who, self.label] = turn + 1
            if most == least:
                return self._found._replace(world_size=len(living))
            if parts > 1:
                parts = 1
                continue
            with contextlib.suppress(PeerLostError):  # then the others begin the next round, too
                rows = yield from self._gather(living, entries, most[-1])
                self._check_alike(living, rows)
                verdict = judge([row[1:] for row in rows])
                assert verdict is not None  # the digests differ
                repairs += 1
                if self._policy == "raise" or not verdict.majority or repairs > REPAIRS:
                    raise self._error(living, verdict, again=repairs > 1)
                self._note(living, verdict)
                if self._policy == "repair":
                    yield from self._repair(living, verdict, rows)
                elif living.index(self._comm.uuid) in verdict.minority:
                    error = self._error(living, verdict)
                    self._comm.close()
                    raise error

    def _meet(self, own: list[int]) -> Generator[Call, Any, tuple[list[UUID], list[int], list[int]]]:
        """The members that live, in the same order on all, and the largest and the smallest of each number that they tell."""
        values = torch.tensor([*own, *(~one for one in own)], device="cpu")  # the maximum of ~x is ~ the minimum of x
        living = yield functools.partial(self._roll, values)
        numbers = values.tolist()
        return sorted(living), numbers[: len(own)], [~one for one in numbers[len(own) :]]

    def _roll(self, values: torch.Tensor, timeout: float | None) -> Sequence[UUID] | frozenset[UUID]:
        if self._group is None:
            return roll(self._comm, values, _TAG, timeout, op=ReduceOp.MAX)
        try:
            info = self._comm.all_reduce(values, op="max", tag=_TAG, survivors=True, group=self._group, timeout=timeout)
        except TooFewPeersError:
            return [self._comm.uuid]
        return info.contributors[0].peers if info.contributors else self._group.members

    def _gather(self, living: list[UUID], entries: list[int], most: int) -> Generator[Call, Any, list[Row]]:
        """What each member holds."""
        own = [[POLICIES.index(self._policy), len(self._forms), 0]]
        own += [[form, *entries[2 * at : 2 * at + 2]] for at, form in enumerate(self._forms)]
        own += [[0, 0, 0]] * (most - len(self._forms))
        sent, rows = torch.tensor(own, device="cpu"), torch.tensor([own] * len(living), device="cpu")
        group = self._comm.group(living)
        yield lambda timeout: self._comm.all_gather(sent, rows, group=group, tag=_TAG_OF_ROWS, timeout=timeout)
        return [tuple(map(tuple, row)) for row in rows.tolist()]

    def _check_alike(self, living: list[UUID], rows: list[Row]) -> None:
        """UsageError on all members: they have passed different entries, or policies."""
        if len({row[0][0] for row in rows}) > 1:
            used = ", ".join(sorted({repr(POLICIES[row[0][0]]) for row in rows}))
            raise _usage(f"the members have passed different policies ({used}); pass the same on all")
        columns = enumerate(zip(*(row[1:] for row in rows), strict=True))
        place = next((at for at, column in columns if len({form for form, *_ in column}) > 1), None)
        if place is None:
            return
        here = self._held.texts[place] if place < len(self._forms) else "missing"
        own = rows[living.index(self._comm.uuid)][1 + place][0]
        uuids = [uuid for uuid, row in zip(living, rows, strict=True) if row[1 + place][0] != own]
        labels = ", ".join(peer_label(name_of(self._comm._handle, one), one) for one in uuids[:LABELS])
        others = labels + f" and {len(uuids) - LABELS} more" * (len(uuids) > LABELS)
        differs = f"{place} is {here} here, and another one at {others}"
        if self._name == "replay":
            raise _usage(f"members have other outputs: output {differs}, or compute failed there")
        raise _usage(f"the members have passed different entries: entry {differs}")

    def _note(self, living: list[UUID], verdict: Verdict) -> None:
        if self._found.entry is None:
            minority = tuple(living[at] for at in verdict.minority)
            self._found = ParityInfo(len(living), self._held.infos[verdict.first].name, minority)

    def _repair(self, living: list[UUID], verdict: Verdict, rows: list[Row]) -> Generator[Call, Any, None]:
        """Brings the entries that differ from one member of the majority to all of the minority, who may be cut short."""
        here, donor = living.index(self._comm.uuid), verdict.majority[0]
        if here != donor and here not in verdict.minority:
            return
        group = self._comm.group([living[donor], *(living[at] for at in verdict.minority)])
        for place, info in enumerate(self._held.infos):
            if all(rows[at][1 + place] == rows[donor][1 + place] for at in verdict.minority):
                continue
            size = info.numel * info.dtype.itemsize
            yield self._comm.launch(
                Collective.BROADCAST,
                group=group,
                tag=tag_of("check_parity", group.members),
                send=info.data_ptr,
                recv=info.data_ptr,
                dtype=DataType.UINT8,
                count=size,
                keep=self._held,
            ).wait
        if here != donor:
            self._held.store()

    def _error(self, living: list[UUID], verdict: Verdict, *, again: bool = False) -> ParityError:
        entry = self._held.infos[verdict.first].name
        who = {living[at]: name_of(self._comm._handle, living[at]) for at in verdict.minority}
        labels = ", ".join(peer_label(name, uuid) for uuid, name in who.items())
        replays = self._name == "replay"
        if not verdict.majority:
            advice = "replay it with three or more members" if replays else "restore a snapshot or a checkpoint on all"
            text = f"entry {entry!r} differs, and no majority of the {len(living)} members agrees ({labels}); {advice}"
            return ParityError(text, self._name, entry=entry)
        since = f" after {REPAIRS} repairs" if again else ""
        which = f"other bytes than the {len(verdict.majority)} members of the majority"
        holds = "holds" if len(who) == 1 else "hold"
        text = f"entry {entry!r} differs{since}: {labels} {holds} {which}; restart the minority"
        if replays:
            hosts, it = ("this host computes", "it") if len(who) == 1 else ("these hosts compute", "them")
            text = (
                f"{entry} differs at {labels}: {hosts} wrongly, unlike {len(verdict.majority)} others; take {it} out of the run"
            )
        return ParityError(text, self._name, entry=entry, minority=tuple(who), names=tuple(who.values()))


def _usage(text: str) -> UsageError:
    return UsageError(Result.INVALID_ARGUMENT, "check_parity", text)


def replay(comm: Communicator, compute: Callable[..., Any], inputs: Sequence[Any], root: int, policy: str) -> ParityInfo:
    """Lets all members compute what one of them does; see Communicator.replay."""
    copies = [one.detach().clone() if is_torch_tensor(one) else one.copy() for one in inputs]
    for one in copies:
        with named("replay"):
            comm.broadcast(one, root, tag=_TAG_OF_INPUTS)
    try:
        made = _named_outputs(compute(*copies))
    except Exception as error:
        with contextlib.suppress(PCCLError):  # the others would wait
            check_parity(comm, {f"{type(error).__name__} raised": torch.zeros(1, device="cpu")}, policy, call="replay")
        raise
    return check_parity(comm, made, policy, call="replay")


def _named_outputs(made: Any) -> _Held:
    """Returns what a computation has returned, to be compared. TypeError: it cannot be."""
    if is_torch_tensor(made) or is_numpy_array(made):
        made = [made]
    if not isinstance(made, Mapping):
        if not isinstance(made, Iterable):
            kind = type(made).__name__
            raise TypeError(f"compute must return a tensor, an array, or a list or a dict of these, not {kind}")
        made = {f"output {place}": one for place, one in enumerate(made)}
    return _Held(made)
