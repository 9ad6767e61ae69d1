"""Snapshots of plain tensors: what `Communicator.snapshot` and `restore` do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import torch

from pccl._errors import CallAgainError, PeerLostError, TooFewPeersError
from pccl.state._snapshots.boxes import Box, ShardMap, own_name, part_of
from pccl.state._snapshots.config import Restored, Snapshots
from pccl.state._snapshots.restore import DamagedError, StateLostError
from pccl.state._snapshots.vault import Opened, vault_of, whole_slice

if TYPE_CHECKING:
    from pccl._communicator import Communicator

ATTEMPTS = 20
"""To restore a state, while members die."""

_TOPIC = "tensors"
_TAG = int.from_bytes(hashlib.blake2b(b"Communicator.snapshot", digest_size=8).digest(), "little")

State = Mapping[str, Any]
Shards = Mapping[str, tuple[Sequence[int], Sequence[int]]]


def snapshot(
    comm: Communicator,
    state: State,
    *,
    step: int,
    snapshots: Snapshots | None,
    shards: Shards | None,
    part: str | None,
    timeout: float | None,
) -> None:
    """Begins a snapshot; see Communicator.snapshot."""
    vault = vault_of(comm, snapshots, _TOPIC, timeout)
    members = _living(comm, timeout)
    problem: Exception | None = None
    tensors: dict[str, torch.Tensor] = {}
    known: ShardMap = {}
    try:
        tensors, known = _described(state, shards, part or str(comm.uuid))
    except (TypeError, ValueError) as error:
        problem = error
    vault.keeper.take(step, tensors, known, b"", members, members.index(comm.uuid), problem)
    vault.keeper.fence()
    if problem is not None:
        vault.keeper.settle()
        raise problem


def wait(comm: Communicator) -> bool:
    """Waits for a snapshot under way; see Communicator.wait_for_snapshot."""
    return vault_of(comm, None, _TOPIC).keeper.settle()


def drop(comm: Communicator) -> None:
    """Drops all snapshots; see Communicator.drop_snapshots."""
    vault_of(comm, None, _TOPIC).keeper.close()


def restore(
    comm: Communicator,
    state: State,
    *,
    snapshots: Snapshots | None,
    shards: Shards | None,
    part: str | None,
    timeout: float | None,
) -> Restored | None:
    """Restores the newest snapshot; see Communicator.restore."""
    vault = vault_of(comm, snapshots, _TOPIC, timeout)
    problem: Exception | None = None
    tensors: dict[str, torch.Tensor] = {}
    known: ShardMap = {}
    try:
        tensors, known = _described(state, shards, part or str(comm.uuid), written=True)
    except (TypeError, ValueError) as error:
        problem = error
    for attempt in range(ATTEMPTS):
        try:
            if attempt:
                comm.update_topology(timeout=timeout)
            members = _living(comm, timeout)
            opened = vault.open(members, members.index(comm.uuid), timeout)
            if opened is None:
                return None
            opened.fill(tensors, known, problem)
            return Restored(opened.step, _parts(opened))
        except DamagedError:
            continue
        except (PeerLostError, CallAgainError, TooFewPeersError):
            if attempt == ATTEMPTS - 1:
                raise
    raise StateLostError(f"the state is lost: {ATTEMPTS} attempts to restore it have failed; see the log")


def _living(comm: Any, timeout: float | None) -> tuple[UUID, ...]:
    """The members, in the same order on all of them, whatever each has heard of losses."""
    from pccl._communicator import roll

    return tuple(sorted(roll(comm, torch.zeros(1, dtype=torch.int64), _TAG, timeout)))


def _parts(opened: Opened) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
    found: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for name, one in sorted(opened.slices.items()):
        own = part_of(name)
        if own is not None:
            found.setdefault(own[0], {})[own[1]] = one.dtype, one.whole
    return found


def _described(
    state: State, shards: Shards | None, part: str, *, written: bool = False
) -> tuple[dict[str, torch.Tensor], ShardMap]:
    """The tensors by their names in shard maps, and which parts they are. TypeError, ValueError: they cannot be kept."""
    if "\0" in part:
        raise ValueError("the name of a part must not contain a NUL character")
    if shards is not None and shards.keys() != state.keys():
        name = min(shards.keys() ^ state.keys())
        raise ValueError(f"tensor {name} must be in both `state` and `shards`")
    tensors: dict[str, torch.Tensor] = {}
    known: ShardMap = {}
    for name, value in state.items():
        if not isinstance(name, str) or "\0" in name:
            raise ValueError(f"names of tensors are strings without NUL characters, not {name!r}")
        tensor = _tensor(name, value, written=written)
        one = whole_slice(tensor)
        key = own_name(part, name)
        if shards is not None:
            whole, offset = (tuple(map(int, numbers)) for numbers in shards[name])
            shape, key = one.box.shape, name
            if not len(whole) == len(offset) == len(shape):
                raise ValueError(f"tensor {name} has {len(shape)} dimensions, and `shards` gives {len(whole)} and {len(offset)}")
            if any(begin < 0 or begin + size > all_ for begin, size, all_ in zip(offset, shape, whole, strict=True)):
                raise ValueError(f"tensor {name}: a part of shape {shape} at {offset} is not inside the shape {whole}")
            one = one._replace(whole=whole, box=Box(offset, shape))
        tensors[key], known[key] = tensor, one
    return tensors, known


def _tensor(name: str, value: Any, *, written: bool) -> torch.Tensor:
    if isinstance(value, np.ndarray):
        if written and not value.flags.writeable:
            raise ValueError(f"tensor {name} is an array that cannot be written to")
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"tensor {name} must be a torch tensor or a NumPy array, not {type(value).__name__}")
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise ValueError(f"tensor {name} must be dense and have memory")
    return value.detach()
