"""The state that all members of a group share: named tensors and a revision."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pccl._core.calls import NativeHandle, call, whole_number
from pccl._core.errors import PCCLError, error_for
from pccl._core.gpu import synchronize
from pccl._core.library import _C, _ffi
from pccl._core.tensors import require
from pccl._core.types import TensorInfo
from pccl._exports import publish

if TYPE_CHECKING:
    import torch

    from pccl.state._local.module import Scalar

SHOWN_ENTRIES = 100
"""By repr."""


class SharedState:
    """The tensors that all members of a group hold alike, and their revision, which grows by one per step.

    The tensors of `tensor_infos` are used where they lie and must be updated in place; `sync_shared_state` refuses one that was
    replaced since. TypeError: an entry is no TensorInfo. UsageError: two entries have one name.
    """

    def __init__(self, tensor_infos: list[TensorInfo]) -> None:
        if not isinstance(tensor_infos, Sequence):
            raise TypeError(f"a shared state is made of a list of TensorInfo, not of {type(tensor_infos).__name__}")
        require(len(tensor_infos) > 0, "a shared state needs at least one tensor")
        for position, info in enumerate(tensor_infos):
            if not isinstance(info, TensorInfo):
                kind = type(info).__name__
                raise TypeError(
                    f"entry {position} is a {kind}, not a TensorInfo; make one with TensorInfo.from_torch(tensor, name)"
                )
        names: set[str] = set()
        for info in tensor_infos:
            if info.name in names:
                text = f'two entries have the name "{info.name}"; names must differ'
                raise error_for(_C.pcclInvalidArgument, "SharedState", text)
            names.add(info.name)
        self._tensor_infos: Sequence[TensorInfo] = tuple(tensor_infos)
        self._names = [_ffi.new("char[]", info.name.encode()) for info in tensor_infos]
        self._infos = _ffi.new("pcclTensorInfo_t[]", len(tensor_infos))
        for c_info, c_name, info in zip(self._infos, self._names, tensor_infos, strict=True):
            c_info.name = c_name
            c_info.data = _ffi.cast("void *", info.data_ptr)
            c_info.count = info.numel
            c_info.datatype = info.dtype.value
            c_info.device_type = info.device_type.value
            c_info.allow_content_inequality = info.allow_content_inequality
        self._state = _ffi.new("pcclSharedState_t *", (0, len(tensor_infos), self._infos))
        self._scalars: list[Scalar] = []
        self._checks: list[Callable[[], str | None]] = []
        self._loaded: int | None = None
        self._forgets = False  # what a transfer has left half written, once its memory is freed
        self._terms: Callable[[], Any] | None = None  # what peers need alike beside the entries
        self.extra: MutableMapping[str, Any] = {}
        """What `from_module` was given as `extra`, by name. Numbers are read and written here."""

    @classmethod
    def from_module(
        cls,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        extra: Mapping[str, Any] | None = None,
        *,
        rng_state: bool = True,
    ) -> SharedState:
        """All that a training loop needs so that a newcomer continues exactly as the others do.

        The parameters and buffers of `module`; the state and the numbers (learning rate, ...) of `optimizer`, whose state is
        made if there is none yet (SGD with `dampening` then damps its first step too); the state of torch's CPU generator
        unless `rng_state` is False; and `extra`: tensors, arrays, ints (such as a step or a position in the data), floats and
        bools, by name. Numbers are used through `state.extra`: `state.extra["step"] += 1`. An int stays one: give what is to
        take fractions as a float.
        """
        from pccl.state._local.module import Collector, terms_of_state  # torch is not imported before it is needed

        collector = Collector()
        collector.add_module(module)
        if optimizer is not None:
            collector.add_optimizer(optimizer)
        if rng_state:
            collector.add_rng()
        collector.add_extra(extra or {})
        made = cls(collector.infos)
        made._scalars = collector.scalars
        made._checks = collector.checks
        made.extra = collector.extra
        made._terms = functools.partial(terms_of_state, module, optimizer, collector.extra, rng_state=rng_state)
        return made

    @property
    def revision(self) -> int:
        """The number of this state; a sync sets it to that of the group."""
        return int(self._state.revision)

    @revision.setter
    def revision(self, value: int) -> None:
        self._state.revision = whole_number("revision", value, 64)

    def push_revision(self) -> None:
        """Adds 1 to the revision: once per step, after the state has changed."""
        self.revision += 1
        self._loaded = None

    def hash(self) -> str:
        """The parity hash of all contents that must be equal: 32 hex digits, the same for the same bytes on every peer."""
        low, high = _ffi.new("uint64_t *"), _ffi.new("uint64_t *")
        self._hash_into("SharedState.hash", low, high, _ffi.NULL)
        return f"{high[0]:016x}{low[0]:016x}"

    def state_dict(self) -> dict[str, Any]:
        """The revision, and the tensors and arrays by name: those of the state themselves, not copies."""
        self._collect("SharedState.state_dict")
        return {"revision": self.revision, "tensors": self._owners()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies what `state_dict` returned into the tensors, and sets the revision.

        Call it before the first sync. When a group syncs for the first time the highest revision wins, whoever has it, and a
        peer whose loaded state is replaced logs a warning. ValueError: the state has other names, shapes or data types; nothing
        is changed then.
        """
        from pccl.state._local.module import copy_by_name  # torch is not imported before it is needed

        self._collect("SharedState.load_state_dict")
        owners = self._owners()
        copy_by_name(owners, state["tensors"])
        for scalar in self._scalars:
            scalar.store()
        if len(owners) == len(self._tensor_infos):
            self.mark_restored()
        self.revision = self._loaded = int(state["revision"])

    def mark_restored(self) -> None:
        """Tells the library that the program has written all entries anew. `load_state_dict` and `load` do so themselves.

        Tensors that a sync was writing when it failed may hold half of another state. They are never given to others until a
        sync into them succeeds, or the program has restored them, from a file, for instance. That goes by memory: call this
        also for new entries by address that may lie where such ones were freed.
        """
        PCCLError.check(_C.pcclMarkSharedStateRestored(self._state), "SharedState.mark_restored")

    def _forget_freed(self) -> None:
        """Lets new tensors lie where those of this state will be freed. For a transfer that fails, or may."""
        if not self._forgets:
            self._forgets = True
            for info, c_info in zip(self._tensor_infos, self._infos, strict=True):
                memory = info._storages[0] if info._storages else info._owner
                while (base := getattr(memory, "base", None)) is not None:  # of a view
                    memory = base
                with contextlib.suppress(TypeError):  # an entry by address, or a kind of memory that cannot be watched
                    weakref.finalize(memory, _mark_restored, _copied(c_info)).atexit = False

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `state_dict` to the folder `path` . After a crash the folder is the old one or the new one."""
        from pccl.state._local.checkpoint import save

        save(self.state_dict(), path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Loads what `save` wrote, like `load_state_dict`. FileNotFoundError: there is none. CheckpointError: it is damaged."""
        from pccl.state._local.checkpoint import load

        self.load_state_dict(load(path))

    def _owners(self) -> dict[str, Any]:
        """The tensors and arrays of the entries that were made from some."""
        return {info.name: info._owner for info in self._tensor_infos if info._owner is not None}

    def to_c(self) -> Any:
        """As a `pcclSharedState_t *`, which lives as long as this object."""
        return self._state

    def _collect(self, function: str) -> None:
        """Before the tensors are read: refuses those that were replaced, and copies what lies elsewhere into them."""
        replaced = (info.replaced() for info in self._tensor_infos)
        for problem in itertools.chain((check() for check in self._checks), replaced):
            if problem:
                raise error_for(_C.pcclInvalidArgument, function, problem)
        synchronize(info._owner for info in self._tensor_infos)
        for scalar in self._scalars:
            scalar.load()

    def _hash_into(self, function: str, low: Any, high: Any, entries: Any) -> None:
        """Hashes all contents that must be equal, and each entry into `entries`, a `uint64_t[]` of two for each, or NULL."""
        self._collect(function)
        PCCLError.check(_C.pccl_ext_state_hash(self._state, low, high, entries), function)

    def _read_only(self) -> Any:
        """Which entries their owners do not want written, as a `bool[]`."""
        return _ffi.new("bool[]", [info.read_only for info in self._tensor_infos])

    def _restore(self) -> None:
        """After the tensors were received: the other way round."""
        for scalar in self._scalars:
            scalar.store()
        if self._loaded is not None:
            from pccl.state._local.checkpoint import warn_if_overridden

            warn_if_overridden(self._loaded, self.revision, "SharedState")
            self._loaded = None

    def __repr__(self) -> str:
        entries = [f"{info.name!r}: {info.numel} x {info.dtype.name}" for info in self._tensor_infos[:SHOWN_ENTRIES]]
        if len(self._tensor_infos) > SHOWN_ENTRIES:
            entries.append(f"and {len(self._tensor_infos) - SHOWN_ENTRIES} more")
        return f"SharedState(revision={self.revision}, {len(self._tensor_infos)} tensors: {', '.join(entries)})"


@dataclass
class SharedStateSyncInfo:
    """What a sync has moved: `rx_bytes` to this peer, `tx_bytes` from it.

    `donors`: peers that this one received from; `leaves`: the pieces of at most 256 KiB that it received.
    """

    tx_bytes: int
    rx_bytes: int
    leaves: int = 0
    donors: int = 0
    seconds: float = 0.0
    """From the first to the last, waiting for the others included."""
    hash_seconds: float = 0.0
    """Of this, for the hashes of the own state."""
    transfer_seconds: float = 0.0
    """Of this, while content moved; 0 when nothing had to."""
    wire_bytes: int = 0
    """What went over links for `rx_bytes`: less where leaves came packed, or out of the memory of a peer on the same host."""


@dataclass(frozen=True)
class SyncProgress:
    """How far a sync is: received and still missing bytes of this peer."""

    received: int
    missing: int
    hashing: bool
    seconds: float


def sync_report(handle: NativeHandle) -> Any:
    out = _ffi.new("struct pccl_sync_report *")
    call(handle, "pccl_ext_sync_report", out, name="pcclSynchronizeSharedState")
    return out


def sync_info(report: Any) -> SharedStateSyncInfo:
    """What a `pccl_sync_report` tells, whose fields are called alike, but for the leaves."""
    others = {field.name: getattr(report, field.name) for field in fields(SharedStateSyncInfo) if field.name != "leaves"}
    return SharedStateSyncInfo(**others, leaves=report.rx_leaves)


def watcher(handle: NativeHandle, progress: Callable[[SyncProgress], object] | None) -> Callable[[], None] | None:
    """What is called in the pauses of a sync that takes its time."""
    if progress is None:
        return None

    def watch() -> None:
        report = sync_report(handle)
        progress(SyncProgress(report.rx_bytes, report.missing_bytes, report.hashing, report.seconds))

    return watch


def _copied(c_info: Any) -> tuple[Any, Any]:
    """An entry alone, and what it needs alive. Nobody reads its name."""
    name, copy = _ffi.new("char[]", b"freed"), _ffi.new("pcclTensorInfo_t[]", [c_info])
    copy[0].name = name
    return name, copy


def _mark_restored(entry: tuple[Any, Any]) -> None:
    _C.pcclMarkSharedStateRestored(_ffi.new("pcclSharedState_t *", (0, 1, entry[1])))


publish(globals())
