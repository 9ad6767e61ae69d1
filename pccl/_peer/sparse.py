"""Sparse averages of gradients: of each chunk of 4,096 elements the `k` largest, in two bits each (SparseLoCo, arXiv 2508.15706).

What a form leaves out stays with its sender as the *residual*, and is added to the next gradient (error feedback). A residual
changes only when the exchange that it belongs to has succeeded.
"""

from __future__ import annotations

import math
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pccl import _sparse_forms
from pccl._core.calls import UNBOUNDED, Deadline
from pccl._core.enums import DataType, DeviceType
from pccl._core.errors import PCCLError, PCCLTimeoutError, PeerLostError, error_for
from pccl._core.groups import Group
from pccl._core.library import _C, _ffi
from pccl._core.results import CollectiveInfo
from pccl._core.tensors import is_torch_tensor, require
from pccl._ops.collectives import Call, Collective
from pccl._ops.handle import Handle
from pccl._ops.parts import Buffer, one_buffer
from pccl._peer.communicator import roll
from pccl._peer.named import CollectiveHandle

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pccl._peer.communicator import Communicator

    Tensor = torch.Tensor | np.ndarray[Any, Any]

_forms_ffi, _forms = _sparse_forms.ffi, _sparse_forms.lib

CHUNK = 4096
"""Elements per chunk."""

K = 64
"""Elements that are sent of each chunk, if nothing else is asked for: 116 bytes for 16 KiB of float32."""

DECAY = 0.95
"""Of the residual, per exchange: the paper's."""

ROLL_TAG = 0x5BA25E << 32
"""Of a reduce after a loss; a program's own reduces have to use other tags."""

_HEAD = struct.Struct("<QIId")  # elements, k, version, weight
_VERSION = 1


def form_bytes(numel: int, k: int = K) -> int:
    """The bytes of the form of `numel` elements: the same for any content.

    UsageError: `k` is not from 1 to 4,096, or no memory holds `numel` elements.
    """
    _require("form_bytes", 1 <= k <= CHUNK, f"k must be from 1 to {CHUNK} elements per chunk, not {k}")
    _require("form_bytes", 0 <= numel <= sys.maxsize // 4, f"{numel} elements do not fit into memory")
    return int(_forms.sparse_bytes(numel, k))


def encode(
    values: Tensor, *, k: int = K, residual: Tensor | None = None, decay: float = 1.0, residual_out: Tensor | None = None
) -> bytearray:
    """The form of `values + decay * residual`; what it lacks of that is written to `residual_out`.

    All tensors are float32, on the CPU, contiguous, of the same number of elements (AssertionError, ValueError). Only
    `residual_out` is written, which may be one of the others. A chunk that holds NaN or infinity is NaN in the elements that are
    sent, and leaves no residual in these. UsageError: `k` is not from 1 to 4,096, or `decay` is not finite.
    """
    source = _floats("values", values)
    form = bytearray(form_bytes(source.numel, k))
    _encode(source, residual, decay, k, form, 0, residual_out)
    return form


def decode_add(form: bytes | bytearray | memoryview, total: Tensor, *, k: int = K, weight: float = 1.0) -> None:
    """`total += weight * form`, in place, each element computed in float64 and rounded once to float32.

    The bytes need not be trusted. UsageError: they are no form of as many elements as `total` has; it is unchanged then.
    """
    target = _floats("total", total, written=True)
    _decode_add(form, target, k, weight)


class SparseInfo(NamedTuple):
    """Who is in an average, by rank, and the bytes that this peer has sent and received for it."""

    members: tuple[UUID, ...]
    tx_bytes: int
    rx_bytes: int


class SparseAverage:
    """Averages gradients like `like` over the members of a communicator's peer group.

    `like` is a float32 tensor on the CPU or a NumPy array; only its kind and its shape are taken. Of each chunk of 4,096 elements
    the `k` largest of `gradient + decay * residual` are sent. All members give the same size and `k` (UsageError on all).
    """

    def __init__(self, like: Tensor, *, k: int = K, decay: float = DECAY) -> None:
        self._numel = _floats("like", like).numel
        form_bytes(self._numel, k)
        if not 0 <= decay <= 1:
            raise ValueError(f"decay must be from 0 to 1, not {decay!r}")
        self.k = k
        self.decay = decay
        self._residual: Tensor = _zeros(like, tuple(like.shape))
        self._spare: Tensor = _zeros(like, tuple(like.shape))
        self._pending: SparseHandle | None = None

    @property
    def residual(self) -> Tensor:
        """What this member has not sent yet, float32: for a checkpoint, which may write it back in place between exchanges.

        It is another tensor after each exchange.
        """
        return self._residual

    @property
    def pending(self) -> SparseHandle | None:
        """The exchange in flight, or whose wait was cut short: one at a time, for each begins with the residual of the last."""
        return self._pending

    def average_async(self, comm: Communicator, gradient: Tensor, *, weight: float = 1.0) -> SparseHandle:
        """Launches an exchange. Its `wait` replaces `gradient` by the average of what all members sent, and `residual`.

        The average is the sum of each member's `weight` times what it sent, divided by the sum of weights: the same bits on all
        members, whose parts are added in the order of their ranks. When a member is lost, those that live make the exchange
        again, so a result has whole contributions only. `weight` is finite and not negative (ValueError). With 0 this member
        only receives: its gradient does not count, and its residual stays. Alone, the average is what this peer would have sent.

        After an error `residual` is as before, bit for bit, and `gradient` is unspecified only if a member sent malformed bytes
        (UsageError on all).
        """
        if self._pending is not None:
            raise error_for(_C.pcclInvalidUsage, "average", "an exchange of this object is in flight; wait for `pending` first")
        target = _floats("gradient", gradient, written=True)
        require(target.numel == self._numel, f"gradient has {target.numel} elements, but this average is of {self._numel}")
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be finite and non-negative, not {weight!r}")
        message = bytearray(_HEAD.size + form_bytes(self._numel, self.k))
        _HEAD.pack_into(message, 0, self._numel, self.k, _VERSION, weight)
        _encode(target, self._residual, self.decay, self.k, message, _HEAD.size, self._spare)
        self._pending = handle = SparseHandle(self, comm, message, target, committed=weight > 0)
        try:
            handle._launch(UNBOUNDED)
        except Exception:  # after a signal it may be in flight, and is waited for as `pending`
            self._pending = None
            raise
        return handle

    def _end(self, handle: SparseHandle, *, committed: bool) -> None:
        """In one statement without calls, which no signal divides: a wait that is repeated commits nothing twice."""
        if self._pending is handle:
            after, before = (self._spare, self._residual) if committed else (self._residual, self._spare)
            self._residual, self._spare, self._pending = after, before, None


class SparseHandle(Handle[SparseInfo]):
    """An exchange in flight. Each has to be waited for: `gradient` and `residual` change where its end is seen.

    After a loss it is made again inside of its wait. So wait for several of one communicator in one thread, and in the same order
    on all members.
    """

    def __init__(self, owner: SparseAverage, comm: Communicator, message: bytearray, target: Buffer, *, committed: bool) -> None:
        super().__init__(comm._events)
        self._owner = owner
        self._comm = comm
        self._message = message
        self._target = target
        self._committed = committed  # the residual changes with success
        self._cancelled = False
        self._members: tuple[UUID, ...] = ()
        self._roll = _zeros(owner._residual, (1,))
        self._room: bytearray | None = None  # for the messages of all members, by rank
        self._op: CollectiveHandle | None = None  # None: this peer is alone

    def _advance(self, deadline: Deadline) -> SparseInfo:
        while True:
            try:
                self._launch(deadline)
                try:
                    told = CollectiveInfo(1, 0, 0) if self._op is None else self._op.wait(deadline.remaining())
                except PeerLostError:
                    self._room = None  # once more, among those that live
                    continue
                info = self._add(told)
            except PCCLTimeoutError:
                raise
            except PCCLError:
                self._owner._end(self, committed=False)
                raise
            self._owner._end(self, committed=self._committed)
            return info

    def _request_cancel(self) -> None:
        self._cancelled = True
        if self._op is not None:
            self._op._request_cancel()

    def _launch(self, deadline: Deadline) -> None:
        """Launches the all-gather, unless it was launched: a signal may come between any two steps."""
        if self._room is None:
            self._members, self._op, self._room = self._prepared(self._group(deadline))
        if self._op is not None:
            self._op.begin()
            if self._cancelled:
                self._op._request_cancel()

    def _group(self, deadline: Deadline) -> Group:
        """All members, or after a loss those that are left."""
        if not self._members:
            return self._comm._group_of(None)
        living = roll(self._comm, self._roll, ROLL_TAG, deadline.remaining())
        return self._comm.group([member for member in self._members if member in living])

    def _prepared(self, group: Group) -> tuple[tuple[UUID, ...], CollectiveHandle | None, bytearray]:
        """The message in its place among those of all members, and the all-gather that brings the others."""
        size = len(self._message)
        room = bytearray(size * group.size)
        room[group.rank * size : (group.rank + 1) * size] = self._message
        if group.size == 1:
            return group.members, None, room
        address = int(_ffi.cast("uintptr_t", _ffi.from_buffer(room)))
        own = Buffer(address + group.rank * size, size, DataType.UINT8, None, room, DeviceType.CPU)
        whole = Buffer(address, len(room), DataType.UINT8, None, room, DeviceType.CPU)
        arguments = {"dtype": DataType.UINT8, "count": size, "send": own.pointer, "recv": whole.pointer}
        call = Call(Collective.ALL_GATHER, group, arguments, own, whole)
        return group.members, CollectiveHandle(self._comm, call), room

    def _add(self, told: CollectiveInfo) -> SparseInfo:
        """The weighted average of what has come."""
        size, owner = len(self._message), self._owner
        assert self._room is not None
        messages = [memoryview(self._room)[rank * size : (rank + 1) * size] for rank in range(len(self._members))]
        heads = [_HEAD.unpack_from(message) for message in messages]
        for rank, (numel, k, version, weight) in enumerate(heads):
            if (numel, k, version) != (owner._numel, owner.k, _VERSION) or not (math.isfinite(weight) and weight >= 0):
                text = f"rank {rank} sends k = {k} of {numel} elements, version {version}, weight {weight:g}, and this peer "
                text += f"k = {owner.k} of {owner._numel}, version {_VERSION}; pass the same size and k on all members"
                raise error_for(_C.pcclInvalidArgument, "average", text)
        total = sum(head[3] for head in heads)
        _ffi.memmove(_ffi.cast("char *", self._target.pointer), bytes(4 * owner._numel), 4 * owner._numel)
        for message, (*_, weight) in zip(messages, heads, strict=True):
            if weight > 0:
                _decode_add(message[_HEAD.size :], self._target, owner.k, weight / total)
        return SparseInfo(self._members, told.tx_bytes, told.rx_bytes)


def _floats(role: str, tensor: Tensor, *, written: bool = False) -> Buffer:
    buffer = one_buffer(role, tensor, written=written)
    require(buffer.dtype is DataType.FLOAT, f"{role} must be float32, not {buffer.dtype.name}")
    return buffer


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    if is_torch_tensor(like):
        torch = sys.modules["torch"]
        return torch.zeros(shape, dtype=torch.float32, device="cpu")
    numpy = sys.modules["numpy"]
    return numpy.zeros(shape, numpy.float32)


def _encode(
    source: Buffer, residual: Tensor | None, decay: float, k: int, out: bytearray, at: int, residual_out: Tensor | None
) -> None:
    before = None if residual is None else _floats("residual", residual)
    after = None if residual_out is None else _floats("residual_out", residual_out, written=True)
    for name, other in (("residual", before), ("residual_out", after)):
        if other is not None:
            text = f"{name} has {other.numel} elements and the values {source.numel}; the sizes must be equal"
            require(other.numel == source.numel, text)
    _require("encode", math.isfinite(decay), f"the decay must be finite, not {decay:g}")
    form = _forms_ffi.from_buffer("uint8_t[]", out, require_writable=True) + at
    if source.numel > 0:
        _forms.sparse_encode(form, _pointer(source), _pointer(before), decay, source.numel, k, _pointer(after))


def _decode_add(form: bytes | bytearray | memoryview, target: Buffer, k: int, weight: float) -> None:
    octets, count, size = _forms_ffi.from_buffer("uint8_t[]", form), target.numel, form_bytes(target.numel, k)
    _require("decode_add", math.isfinite(weight), f"the weight must be finite, not {weight:g}")
    text = f"a sparse form of {count} elements with {k} of each chunk has {size} bytes, not {len(octets)}"
    _require("decode_add", len(octets) == size, text)
    _require("decode_add", _forms.sparse_valid(octets, count, k), f"these bytes are not a sparse form of {count} elements")
    _forms.sparse_add(_pointer(target), octets, weight, count, k)


def _require(call: str, holds: bool, text: str) -> None:
    if not holds:
        raise error_for(_C.pcclInvalidArgument, call, text)


def _pointer(buffer: Buffer | None) -> Any:
    return _forms_ffi.NULL if buffer is None else _forms_ffi.cast("float *", buffer.pointer)
