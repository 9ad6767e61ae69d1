"""Training that processes join while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

import pccl
from pccl._collectives import Collective
from pccl._enums import DataType
from pccl._errors import JoinError
from pccl.distributed import _bootstrap
from pccl.distributed._group import ProcessGroup
from pccl.distributed._launch import digest
from pccl.distributed._training import Training
from pccl.state import LIMIT_BYTES, decode, encode
from pccl.state._objects import has_state, load_object_state, object_state

ATTEMPTS = 20
"""To bring a newcomer up to date, while members die."""

_TAG = digest("Elastic.sync")
"""Of what is broadcast in a sync; the next number too. No process group has a call under way then."""


_OWN = frozenset({"_values", "_training", "_every", "_calls", "_revision", "_known"})
"""Attributes of an Elastic that are no values."""


class Elastic:
    """A model and its optimizer in a training whose processes may be lost, and others join.

    All processes call `sync` at the top of each step. It lets those in that wait, and brings them up to date out of the memory of
    the others: parameters and optimizer state; buffers and `values` are those of rank 0.

    `values` are what else a newcomer needs, such as `step=0`; they are attributes. One with `state_dict` and `load_state_dict`,
    such as a scheduler, is brought up to date by these; any other is replaced. What they consist of are numbers, strings,
    tensors, arrays, and lists, tuples, dicts and sets of these; `pccl.state.allow` adds a class. The learning rates of the
    optimizer that a scheduler steers come along.

    `every`: only each so many calls of `sync` look whether somebody waits.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None = None, *, every: int = 1, **values: Any
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 or more calls, not {every}")
        for name in values:
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"Elastic: {name!r} cannot be the name of a value; choose another name")
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
        self._values = values
        self._training = Training(model, optimizers)
        self._every = every
        self._calls = 0
        self._revision = 0
        self._known: tuple[UUID, ...] = ()

    def sync(self, timeout: timedelta | None = None) -> bool:
        """Lets newcomers in; at one of them, becomes a member. Whether the members are others than after the last call.

        Then ranks and the world size may be others too, so that data has to be shared out anew; the first call gives True.
        It is a barrier of all members, to be called between two steps. `timeout`: as of the group, unless given.

        JoinError, at a newcomer only: it was not let in.
        """
        group = _group_of_all()
        seconds = group._timeout if timeout is None else timeout.total_seconds()
        looks = self._calls % self._every == 0
        if _bootstrap.to_join():
            self._join(group, _bootstrap.to_join(), seconds)
            looks = True  # as the members do after they have let it in
        if looks:
            while group.communicator.are_peers_pending(timeout=seconds):
                self._admit(group, seconds)
        self._calls += 1
        changed = group.members != self._known
        self._known = group.members
        return changed

    # ---- at members ----

    def _admit(self, group: ProcessGroup, seconds: float) -> None:
        comm = group.communicator
        self._revision += 1
        told = bytes(encode(self._described(group)))  # before anybody is let in: what cannot be packed is an error on all alike
        comm.update_topology(timeout=seconds)
        self._bring_up_to_date(group, told, seconds)

    def _described(self, group: ProcessGroup) -> dict[str, Any]:
        """What a newcomer is told; all but the buffers and values are the same on all members."""
        return {
            "revision": self._revision,
            "members": group.members,
            "training": self._training.outline(),
            "values": {
                name: (has_state(value), object_state(value) if has_state(value) else value)
                for name, value in self._values.items()
            },
        }

    # ---- at a newcomer ----

    def _join(self, group: ProcessGroup, masters: str, seconds: float) -> None:
        comm = group.communicator
        try:
            told = bytes(encode(self._described(group))) if _bootstrap.to_begin() else b""
            comm.connect(timeout=seconds)
            self._bring_up_to_date(group, told, seconds, new=True)
        except BaseException as error:
            comm.close()  # whatever went wrong, members must not wait for this process
            if not isinstance(error, Exception):
                raise
            raise JoinError(f"this process could not join the run at {masters}: {error or type(error).__name__}") from error
        _bootstrap.joined()

    def _take(self, told: dict[str, Any]) -> None:
        self._training.take(told["training"])
        if self._values.keys() != told["values"].keys():
            name = min(self._values.keys() ^ told["values"].keys())
            raise ValueError(f"value {name!r} is not given to Elastic by all processes")
        for name, (is_object, content) in told["values"].items():
            if is_object != has_state(self._values[name]):
                raise ValueError(f"value {name!r} has the method state_dict in some processes only")
            if is_object:
                load_object_state(self._values[name], content, f"value {name!r}")
            else:
                self._values[name] = content

    # ---- at all ----

    def _bring_up_to_date(self, group: ProcessGroup, told: bytes, seconds: float, new: bool = False) -> None:
        """Makes all who are there members of the group, with the content that the first of them tells.

        `told` is what a member tells; a newcomer (`new`) nothing, or what the run is to begin with if nobody else is there.
        All see the same losses in the same calls, so all make the same attempts.
        """
        comm = group.communicator
        touched = False  # by a run that goes on: then it is too late to begin one
        for attempt in range(ATTEMPTS):
            try:
                here = comm.members
                heard = _broadcast(comm, here, told, seconds)
                if not heard:
                    raise JoinError("nobody is there any more who could bring it up to date: the run has ended")
                content = decode(heard)
                if content["revision"] == 0 and touched:
                    raise JoinError("all who had the state of the run are gone")
                touched = new and content["revision"] > 0
                if new:
                    self._take(content)
                self._share(comm, here, 0 if new else content["revision"], seconds)
                break
            except (pccl.PeerLostError, pccl.CallAgainError, pccl.TooFewPeersError, _DisagreedError):
                if attempt == ATTEMPTS - 1:
                    raise
                comm.update_topology(timeout=seconds)
        self._revision = content["revision"]
        self._calls = 0
        before = [member for member in content["members"] if member in here]
        group.attach(comm, [*before, *(member for member in here if member not in before)], self._revision)
        self._training.make_buckets_anew()

    def _share(self, comm: pccl.Communicator, here: Sequence[UUID], revision: int, seconds: float) -> None:
        shared = self._training.share()
        if shared.state is None or len(here) == 1:
            return
        shared.state.revision = revision
        if comm.sync_shared_state(shared.state, timeout=seconds).rx_bytes:
            shared.restore()

    # ---- values ----

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"{name!r} is not one of the values given to Elastic: {', '.join(values) or 'there are none'}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        elif name in self._values:
            self._values[name] = value
        else:
            raise AttributeError(f"{name!r} is not one of the values given to Elastic: Elastic(model, optimizer, {name}=...)")


class _DisagreedError(Exception):
    """Members have seen different ones of several losses, and made groups of different members."""


def _broadcast(comm: pccl.Communicator, here: Sequence[UUID], content: bytes, seconds: float) -> bytes:
    """The content of the first of these members, which has been there for longest, on all of them."""
    if len(here) == 1:
        return content
    group = comm.group(here)
    length = torch.tensor([len(content)])
    _broadcast_tensor(comm, group, length, DataType.INT64, _TAG, seconds)
    if not 0 <= int(length) <= LIMIT_BYTES:
        raise JoinError(f"a member announced a state of {int(length)} bytes, and at most {LIMIT_BYTES} are accepted")
    if group.rank == 0:
        body = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)
    else:
        body = torch.empty(max(1, int(length)), dtype=torch.uint8)
    if int(length):
        _broadcast_tensor(comm, group, body, DataType.UINT8, _TAG + 1, seconds)
    return body.numpy().tobytes() if int(length) else b""


def _broadcast_tensor(
    comm: pccl.Communicator, group: Any, tensor: torch.Tensor, dtype: DataType, tag: int, seconds: float
) -> None:
    pointer = tensor.data_ptr()
    try:
        op = comm.launch(
            Collective.BROADCAST,
            group=group,
            tag=tag & (1 << 64) - 1,
            send=pointer,
            recv=pointer,
            dtype=dtype,
            count=tensor.numel(),
            survivors=True,
            keep=tensor,
        )
        op.wait(seconds)
    except pccl.UsageError as error:
        raise _DisagreedError(str(error)) from error


def _described_value(value: Any) -> tuple[bool, Any]:
    """Whether a value is an object with a state, and what a newcomer needs of it."""
    return (True, object_state(value)) if has_state(value) else (False, value)


def _group_of_all() -> ProcessGroup:
    group: Any = dist.GroupMember.WORLD
    if not isinstance(group, ProcessGroup):
        raise RuntimeError(
            'Elastic needs a process group of the backend "pccl": call init_process_group("pccl") first, or join()'
        )
    return group
