"""Which state a run begins with: that of the member with the highest step, whoever has connected first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from pccl._core.enums import ReduceOp
from pccl._core.errors import JoinError, TooFewPeersError
from pccl._exports import publish
from pccl.state._local.tree import LIMIT_BYTES

if TYPE_CHECKING:
    from pccl._peer.communicator import Communicator

STEP_LIMIT = 1 << 62
"""Steps are below it."""


def broadcast_bytes(broadcast: Callable[[torch.Tensor], object], body: bytes | None, *, failed: bool = False) -> bytes:
    """Returns on all members the bytes that one of them has: `body`, which is None at the others.

    `broadcast` brings a tensor of that member to the others. JoinError at the others: it has `failed` to make the bytes, or
    announces none or more than LIMIT_BYTES.
    """
    length = torch.tensor([-1 if failed else len(body or b"")], device="cpu")
    broadcast(length)
    size = int(length)
    if size == -1 and not failed:
        raise JoinError("the member that has the state cannot send it; see its error")
    if not failed and not 0 < size <= LIMIT_BYTES:
        raise JoinError(f"a member announced a state of {size} bytes, and at most {LIMIT_BYTES} are accepted")
    if failed:
        return b""
    content = torch.frombuffer(bytearray(body), dtype=torch.uint8) if body else torch.empty(size, dtype=torch.uint8, device="cpu")
    broadcast(content)
    return content.numpy().tobytes()


class Start(NamedTuple):
    """What the members know together."""

    begun: bool
    """True if some member has trained in this run already, so that the others receive its state."""
    step: int
    """The highest step of the members that have begun, or of all if nobody has."""


def highest_step(comm: Communicator, step: int, *, begun: bool, tag: int, timeout: float | None = None) -> Start:
    """Returns the same `Start` on all members of the peer group. All call it at the same place, as a collective under `tag`.

    `step` is that of this member's state (0 if it is new), and `begun` tells whether the member has received or begun the run.
    The loss of members is no error.

    How to use it: members call it after each meeting that let somebody in, until the run has begun. If `start.begun`, a member
    that has not begun syncs with revision 0, and so receives. If nobody has begun and enough members are there, all sync with
    their step as revision: the master elects the highest. After the sync `warn_if_overridden` tells about a loaded state.
    """
    if not 0 <= step < STEP_LIMIT:
        raise ValueError(f"step must be at least 0 and below 2^62, not {step}")
    return start_of(highest(comm, [standing(step, begun=begun)], tag=tag, timeout=timeout)[0])


def standing(step: int, *, begun: bool) -> int:
    """A number that is higher for whoever has begun, and then for the higher step."""
    return step + (STEP_LIMIT if begun else 0)


def start_of(highest: int) -> Start:
    """What the highest `standing` of the members tells."""
    return Start(highest >= STEP_LIMIT, highest % STEP_LIMIT)


def highest(comm: Communicator, numbers: Sequence[int], *, tag: int, timeout: float | None = None) -> list[int]:
    """Returns the highest of each number over the members who live, the same on all of them."""
    values = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    raise_to_highest(comm, tag, values, timeout)
    found: list[int] = values.tolist()
    return found


def raise_to_highest(comm: Communicator, tag: int, values: torch.Tensor, timeout: float | None) -> None:
    with contextlib.suppress(TooFewPeersError):  # alone
        comm.all_reduce(values, op=ReduceOp.MAX, tag=tag, retry=True, timeout=timeout)


publish(globals())
