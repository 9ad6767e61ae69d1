"""Whether all members hold the same state, bit for bit: what `Communicator.check_parity` and `replay` do.

A check goes in rounds, and each begins with a reduce that goes on without members that are lost. From it all survivors know who
is there and whether all digests are equal: in almost all calls that is the end. Otherwise they gather the hashes of all entries,
and each judges the same table: all that return, raise or repair do so alike. Whatever a loss cuts short leads to the next round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

import torch
from torch import nn

from pccl._collectives import Collective, Tags
from pccl._communicator import Communicator, roll
from pccl._enums import DataType, ReduceOp
from pccl._errors import ArgumentError, ParityError, PeerLostError, Result, UsageError
from pccl._loader import load_native_module
from pccl._names import name_of, peer_label
from pccl._results import ParityInfo
from pccl._state import SharedState
from pccl._tensors import is_numpy_array, is_torch_tensor
from pccl._types import TensorInfo
from pccl.state._entries import COMPILED
from pccl.state._module import _shareable

_ffi, _C = load_native_module()

POLICIES = ("raise", "repair", "expel")

REPAIRS = 3
"""In one call: memory that differs after as many does not keep what is written to it."""


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
        self.state = state if isinstance(state, SharedState) else self._of_tensors(_named(state))
        self.infos = self.state._tensor_infos

    def _of_tensors(self, tensors: Mapping[str, Any]) -> SharedState:
        infos = []
        for name, tensor in tensors.items():
            if not is_torch_tensor(tensor):
                infos.append(TensorInfo.from_numpy(tensor, name))
                continue
            if hasattr(tensor, "full_tensor"):  # a DTensor
                raise TypeError(f"{name} is sharded, and no other member holds the same part; pass what all members hold alike")
            plain = tensor.detach()
            if not plain.is_contiguous():
                plain = plain.contiguous()
                self._copies.append((tensor.detach(), plain))
            infos.append(TensorInfo.from_torch(_shareable(plain), name))
        return SharedState(infos)

    def forms(self) -> list[int]:
        """By entry: a hash of its name, type and size."""
        infos = self.infos
        return [_number(f"{one.name}\0{one.dtype.name} {one.numel} {one.allow_content_inequality}") for one in infos]

    def hashes(self) -> tuple[list[int], list[int]]:
        """The hash of the whole, and those of all entries, as numbers of 64 bits with signs, two for each."""
        whole, entries = _ffi.new("int64_t[]", 2), _ffi.new("int64_t[]", 2 * len(self.infos))
        unsigned = [_ffi.cast("uint64_t *", one) for one in (whole, whole + 1, entries)]
        self.state._hash_into("check_parity", *unsigned)
        return _ffi.unpack(whole, 2), _ffi.unpack(entries, 2 * len(self.infos))

    def store(self) -> None:
        """After bytes were received: brings them to where the program has them."""
        for tensor, copy in self._copies:
            tensor.copy_(copy)
        for scalar in self.state._scalars:
            scalar.store()


def _named(state: Any) -> Mapping[str, Any]:
    if isinstance(state, nn.Module):
        return {f"parameter/{name.replace(COMPILED, '')}": one for name, one in state.named_parameters()}
    if isinstance(state, Mapping):
        return state
    kind = type(state).__name__
    raise TypeError(f"state must be a SharedState, a torch.nn.Module or a dict of tensors by name, not {kind}")


def check_parity(comm: Communicator, state: Any, policy: str) -> ParityInfo:
    """Compares the state of all members; see Communicator.check_parity."""
    if policy not in POLICIES:
        raise ArgumentError(f"policy must be one of {', '.join(map(repr, POLICIES))}, not {policy!r}")
    held = _Held(state)
    if policy == "repair":
        for info in held.infos:
            if info.read_only:
                raise ArgumentError(f"entry {info.name!r} is read-only and cannot be repaired; pass another policy")
    return _Check(comm, held, policy).run()


class _Check:
    """One call of `check_parity`."""

    def __init__(self, comm: Communicator, held: _Held, policy: str) -> None:
        self._comm = comm
        self._held = held
        self._policy = policy
        self._forms = held.forms()
        self._label = _number(f"{policy} {self._forms}")
        self._found = ParityInfo(1)  # of the first round in which members differ

    def run(self) -> ParityInfo:
        repairs = 0
        while True:
            whole, entries = self._held.hashes()
            living, most = self._meet(whole)
            if most is None:
                return self._found._replace(world_size=len(living))
            with contextlib.suppress(PeerLostError):  # then the others begin the next round, too
                rows = self._gather(living, entries, most)
                self._check_alike(rows)
                verdict = judge([row[1:] for row in rows])
                assert verdict is not None  # the digests differ
                repairs += 1
                if self._policy == "raise" or not verdict.majority or repairs > REPAIRS:
                    raise self._error(living, verdict, again=repairs > 1)
                self._note(living, verdict)
                if self._policy == "repair":
                    self._repair(living, verdict, rows)
                elif living.index(self._comm.uuid) in verdict.minority:
                    error = self._error(living, verdict)
                    self._comm.close()
                    raise error

    def _meet(self, whole: list[int]) -> tuple[list[UUID], int | None]:
        """The members that live, in the same order on all, and the largest number of their entries; None: all hold the same."""
        own = [*whole, self._label, len(self._forms)]
        values = torch.tensor([*own, *(~one for one in own)], device="cpu")  # the maximum of ~x is ~ the minimum of x
        living = sorted(roll(self._comm, values, _TAG, op=ReduceOp.MAX))
        most, least = values.tolist()[:4], [~one for one in values.tolist()[4:]]
        return living, None if most == least else most[3]

    def _gather(self, living: list[UUID], entries: list[int], most: int) -> list[Row]:
        """What each member holds."""
        own = [[POLICIES.index(self._policy), len(self._forms), 0]]
        own += [[form, *entries[2 * at : 2 * at + 2]] for at, form in enumerate(self._forms)]
        own += [[0, 0, 0]] * (most - len(self._forms))
        all_rows = torch.tensor([own] * len(living), device="cpu")
        self._comm.all_gather(torch.tensor(own, device="cpu"), all_rows, group=self._comm.group(living), tag=_TAG_OF_ROWS)
        return [tuple(map(tuple, row)) for row in all_rows.tolist()]

    def _check_alike(self, rows: list[Row]) -> None:
        """UsageError on all members: they have passed different entries, or policies."""
        if len({row[0][0] for row in rows}) > 1:
            used = ", ".join(sorted({repr(POLICIES[row[0][0]]) for row in rows}))
            raise _usage(f"the members have passed different policies ({used}); pass the same on all")
        forms = [[entry[0] for entry in row[1 : 1 + row[0][1]]] for row in rows]
        if all(one == forms[0] for one in forms):
            return
        most = max(map(len, forms))
        padded = [[*one, *([0] * (most - len(one)))] for one in forms]
        place = next(at for at, column in enumerate(zip(*padded, strict=True)) if len(set(column)) > 1)
        here = "missing"
        if place < len(self._held.infos):
            info = self._held.infos[place]
            here = f"{info.name!r} ({info.numel} x {info.dtype.name})"
        raise _usage(f"the members have passed different entries: entry {place} is {here} here, and another one elsewhere")

    def _note(self, living: list[UUID], verdict: Verdict) -> None:
        if self._found.entry is None:
            minority = tuple(living[at] for at in verdict.minority)
            self._found = ParityInfo(len(living), self._held.infos[verdict.first].name, minority)

    def _repair(self, living: list[UUID], verdict: Verdict, rows: list[Row]) -> None:
        """Brings the entries that differ from one member of the majority to all of the minority, who may be cut short."""
        here, donor = living.index(self._comm.uuid), verdict.majority[0]
        if here != donor and here not in verdict.minority:
            return
        group = self._comm.group([living[donor], *(living[at] for at in verdict.minority)])
        for place, info in enumerate(self._held.infos):
            if all(rows[at][1 + place] == rows[donor][1 + place] for at in verdict.minority):
                continue
            size = info.numel * info.dtype.itemsize
            self._comm.launch(
                Collective.BROADCAST,
                group=group,
                tag=Tags.of("check_parity", group.members, None, 0),
                send=info.data_ptr,
                recv=info.data_ptr,
                dtype=DataType.UINT8,
                count=size,
                keep=self._held,
            ).wait()
        if here != donor:
            self._held.store()

    def _error(self, living: list[UUID], verdict: Verdict, *, again: bool = False) -> ParityError:
        entry = self._held.infos[verdict.first].name
        who = {living[at]: name_of(self._comm._handle, living[at]) for at in verdict.minority}
        labels = ", ".join(peer_label(name, uuid) for uuid, name in who.items())
        if not verdict.majority:
            text = f"entry {entry!r} differs, and no majority of the {len(living)} members agrees ({labels})"
            return ParityError(f"{text}; restore a snapshot or a checkpoint on all", entry=entry)
        since = f" after {REPAIRS} repairs" if again else ""
        which = f"other bytes than the {len(verdict.majority)} members of the majority"
        holds = "holds" if len(who) == 1 else "hold"
        text = f"entry {entry!r} differs{since}: {labels} {holds} {which}; restart the minority"
        return ParityError(text, entry=entry, minority=tuple(who), names=tuple(who.values()))


def _usage(text: str) -> UsageError:
    return UsageError(Result.INVALID_ARGUMENT, "check_parity", text)


def replay(comm: Communicator, compute: Callable[..., Any], inputs: Sequence[Any], root: int, policy: str) -> ParityInfo:
    """Lets all members compute what one of them does; see Communicator.replay."""
    copies = [one.detach().clone() if is_torch_tensor(one) else one.copy() for one in inputs]
    for one in copies:
        comm.broadcast(one, root, tag=_TAG_OF_INPUTS)
    made = compute(*copies)
    if is_torch_tensor(made) or is_numpy_array(made):
        made = [made]
    if not isinstance(made, Mapping):
        made = {f"output {place}": one for place, one in enumerate(made)}
    return check_parity(comm, made, policy)
