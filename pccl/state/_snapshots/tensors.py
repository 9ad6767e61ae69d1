"""Snapshots of plain tensors: what `Communicator.snapshot` and `restore` do."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import torch

from pccl._core.errors import CallAgainError, PeerLostError, ProtectionError, StateLostError, TooFewPeersError
from pccl._core.names import label_in
from pccl._core.tensors import is_expanded
from pccl.state._local.agreement import Terms, require_alike
from pccl.state._snapshots.boxes import Box, ShardMap, own_name, part_of, whole_number
from pccl.state._snapshots.config import Restored, Snapshots
from pccl.state._snapshots.restore import ATTEMPTS, STEP_MAX, DamagedError
from pccl.state._snapshots.snapshot import Contribution
from pccl.state._snapshots.talk import Talk
from pccl.state._snapshots.vault import Opened, Vault, drop_vault, vault_of, whole_slice

if TYPE_CHECKING:
    from pccl._peer.communicator import Communicator

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
) -> dict[str, bool]:
    """Returns which protections were missing at the snapshot before."""
    vault, tensors, known, problem = _given(comm, snapshots, state, shards, part, timeout)
    try:
        step = whole_number(operator.index(step), STEP_MAX, -STEP_MAX)
    except (TypeError, ValueError) as error:  # the others wait for this member, and hear of it
        step, problem = 0, problem or type(error)(f"step must be a whole number below 2^63, not {step!r}")
    redundancy = vault.snapshots.redundancy
    wanted = redundancy.data << 10 | redundancy.parity
    vault.restoring.require_whole("snapshot")
    with vault.taking.call(comm, "snapshot", f"of step {step}") as journal:
        failure = vault.keeper.verdict(step)
        numbers = torch.tensor([wanted, wanted * wanted, int(failure is not None)], device="cpu")
        members, sums = journal.step(functools.partial(_living, comm), numbers, timeout)
        own = members.index(comm.uuid)
        if len(members) * sums[1] != sums[0] * sums[0]:  # by Cauchy and Schwarz equal for equal numbers only
            talk, terms = Talk(comm, members, own, "settings", timeout), Terms({"copies or code of Snapshots": redundancy})
            require_alike("snapshot", terms, [[0], [1]], talk.gather_bytes, label_in(comm, comm.rank), own)
        if sums[2]:
            raise ProtectionError(f"snapshots fail: {failure or 'those of another member; see its log'}", "snapshot")
        job = journal.once(lambda: vault.begin(Contribution(step, tensors, known, b"", members, own, problem)))
        journal.release()  # the others have what they need of this call
        job.copied.wait()
        if job.problem is not None:
            job.ended.wait()
            raise job.problem
    return vault.keeper.missing


def wait(comm: Communicator) -> bool:
    vault: Vault | None = comm._vaults.get(_TOPIC)
    return vault is not None and vault.settle()


def drop(comm: Communicator, snapshots: Snapshots | None) -> None:
    drop_vault(comm, snapshots, _TOPIC)


def restore(
    comm: Communicator,
    state: State,
    *,
    snapshots: Snapshots | None,
    shards: Shards | None,
    part: str | None,
    timeout: float | None,
) -> Restored | None:
    vault, tensors, known, problem = _given(comm, snapshots, state, shards, part, timeout, written=True)
    vault.taking.require_whole("restore")
    vault.taking.drop_released()  # the training may come to the same step again, and take another snapshot there
    attempt = 0
    while attempt < ATTEMPTS:
        try:
            vault.settle(timeout)
            with vault.restoring.call(comm, "restore") as journal:
                attempt = journal.once(int, attempt)  # that of the call that was cut short
                if attempt:
                    journal.once(functools.partial(comm.update_topology, timeout=timeout))
                numbers = torch.zeros(2, dtype=torch.int64, device="cpu")
                members, _ = journal.step(functools.partial(_living, comm), numbers, timeout)
            opened = vault.open(members, members.index(comm.uuid), timeout)
            if opened is None:
                if problem is not None:
                    raise problem
                return None
            opened.fill(tensors, known, problem)
            return Restored(opened.step, _parts(opened))
        except DamagedError:
            pass
        except (PeerLostError, CallAgainError, TooFewPeersError):
            if attempt == ATTEMPTS - 1:
                raise
        attempt += 1
    raise StateLostError(f"the state is lost: {ATTEMPTS} attempts to restore it have failed; see the log")


def _given(
    comm: Communicator,
    snapshots: Snapshots | None,
    state: State,
    shards: Shards | None,
    part: str | None,
    timeout: float | None,
    *,
    written: bool = False,
) -> tuple[Vault, dict[str, torch.Tensor], ShardMap, Exception | None]:
    """The vault, the tensors as `_described` has them, and what is wrong: others hear of it, since they wait for this member."""
    problem: Exception | None = None
    try:
        vault = vault_of(comm, snapshots, _TOPIC, timeout)
    except ValueError as error:
        vault, problem = vault_of(comm, None, _TOPIC, timeout), error
    try:
        return vault, *_described(state, shards, part or str(comm.uuid), written=written), problem
    except (TypeError, ValueError) as error:
        return vault, {}, {}, problem or error


def _living(comm: Any, numbers: torch.Tensor, timeout: float | None) -> tuple[UUID, ...]:
    """The members, in the same order on all of them, whatever each has heard of losses. `numbers` become the sums of theirs.

    PCCLTimeoutError: call it again with the same tensor.
    """
    from pccl._peer.communicator import roll

    return tuple(sorted(roll(comm, numbers, _TAG, timeout)))


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
    for what, given in (("state", state), ("shards", {} if shards is None else shards)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} must be a dict by the names of tensors, not {type(given).__name__}")
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
    if hasattr(value, "full_tensor"):  # a DTensor
        raise TypeError(f"tensor {name} is sharded; pass its local part, to_local(), and where that lies in `shards`")
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise ValueError(f"tensor {name} must be dense and have memory")
    if written and (is_expanded(value) or (value.is_inference() and not torch.is_inference_mode_enabled())):
        raise ValueError(f"tensor {name} is expanded or of inference mode, and cannot be written to; pass its clone()")
    return value.detach()
