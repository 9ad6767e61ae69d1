"""What a process keeps of snapshots: its pieces, the memory of those that were dropped, and its connection to the holder."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pccl._host.holder import Holder, HolderError
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.images import Memory
from pccl.state._snapshots.snapshot import PieceName, Snapshot

_log = logging.getLogger("pccl.state")

_released: dict[str, Holder] = {}
"""By name of the run: connections of communicators that were closed. While this process lives, the holder keeps its memory."""


class Kept:
    """The pieces of one process, in its memory and at the holder of its host."""

    def __init__(self, config: Snapshots, name: str) -> None:
        self._config = config
        self._name = name
        self.snapshots: list[Snapshot] = []
        """From the oldest to the newest; those that this process has pieces of."""
        self.unusable: set[tuple[int, PieceName]] = set()
        """Pieces, by snapshot, of another size than they should have."""
        self._spare: list[Memory] = []
        self._holder: Holder | None = None
        self._warned: set[str] = set()

    def keep(self, snapshots: Sequence[Snapshot]) -> None:
        """Drops all other snapshots, and those of these that have no pieces."""
        for one in self.snapshots:
            if one not in snapshots:
                self.forget(one)
        self.snapshots = [one for one in snapshots if one.pieces]

    def close(self) -> None:
        """Drops all that this process has kept, also at the holder."""
        self.keep([])
        self._spare.clear()
        # The holder also has pieces of communicators that were closed here, and of processes that have ended.
        self.clean_holder(lambda info: info["process"] == _process() or _is_over(*info["process"]))
        self.abandon()

    def abandon(self) -> None:
        """Closes the connection to the holder; what the holder keeps stays there."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    def release(self) -> None:
        """Frees the memory here. The connection to the holder stays open: the next communicator may take any time to come."""
        self.snapshots = []
        self._spare.clear()
        holder, self._holder = self._holder, None
        if holder is not None:
            earlier = _released.pop(self._name, None)
            _released[self._name] = holder
            if earlier is not None:
                earlier.close()

    def memory(self, nbytes: int) -> Memory:
        """Memory of this size, with any content."""
        for spare in self._spare:
            if spare.nbytes == nbytes:
                self._spare.remove(spare)
                return spare
        self._spare.clear()
        return Memory.new(nbytes)

    def holder(self, *, start: bool) -> Holder | None:
        """The connection to the holder of this host. None: there is none, or it is not wanted."""
        if not self._config.holder:
            return None
        if self._holder is None:
            try:
                self._holder = Holder(self._name, start=start, linger=self._config.linger)
            except HolderError:
                if start:
                    raise
            released = _released.pop(self._name, None)  # after the new connection: one of both is open all the time
            if released is not None:
                released.close()
        return self._holder

    def clean_holder(self, is_old: Callable[[dict[str, Any]], bool]) -> None:
        """Has the holder drop the old pieces of whatever process, and the layouts that no piece needs."""
        holder = self._holder
        if holder is None:
            return
        try:
            kept = holder.kept()
            old = [one for one in kept if "piece" in one.info and is_old(one.info)]
            used = {one.info["layout"] for one in kept if "piece" in one.info and one not in old}
            layouts = [one for one in kept if "piece" not in one.info and one.info["layout"] not in used]
            holder.drop(one.key for one in (*old, *layouts))
        except HolderError:
            self.abandon()
        except (KeyError, TypeError) as error:  # of another version of the library
            self.warn(f"the holder keeps pieces that cannot be read: {error!r}")

    def store(self, snapshot: Snapshot) -> None:
        """Gives the pieces to the holder. One that has ended is started again, and gets all that is kept here."""
        for attempt in (0, 1):
            holder = self.holder(start=True)
            if holder is None:
                return
            try:
                for one in {id(one): one for one in (*(self.snapshots if attempt else ()), snapshot)}.values():
                    for name, memory in one.pieces.items():
                        holder.put(self._key(one, name), memory.fd, piece_info(one, name))
                    layout = Memory.of(one.layout.encoded())
                    holder.put(f"layout/{one.layout.id}", layout.fd, {"layout": one.layout.id})
                return
            except HolderError as error:
                self.abandon()
                if attempt:
                    raise
                self.warn(f"{error}; another holder is started, and gets all that this process keeps")

    def _key(self, snapshot: Snapshot, name: PieceName) -> str:
        return f"{snapshot.id}/{name.kind}/{name.place}/{name.row}"

    def forget(self, snapshot: Snapshot) -> None:
        holder = self._holder
        if holder is not None:
            try:
                holder.drop([self._key(snapshot, name) for name in snapshot.pieces])
            except HolderError:
                self.abandon()
        # A holder that has not dropped a piece would give it to others with the content of a newer one.
        dropped = self._holder is not None or not self._config.holder
        for name, memory in snapshot.pieces.items():
            if dropped and name.kind != "values":
                self._spare.append(memory)
        snapshot.pieces.clear()

    def warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", f"snapshots: {text}")


def host_name() -> str:
    """The same for processes that share a holder."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{socket.gethostname()} {file.read().strip()[:8]} {os.stat('/proc/self/ns/net').st_ino}"
    return socket.gethostname()


def _process() -> list[int]:
    """Names this process among all of its host: its id, when it began, and the namespace that the id is from."""
    return [os.getpid(), _began(os.getpid()), os.stat("/proc/self/ns/pid").st_ino]


def _is_over(pid: int, began: int, namespace: int) -> bool:
    """Whether a process has ended. One of another namespace cannot be seen, so it may live."""
    return namespace == os.stat("/proc/self/ns/pid").st_ino and _began(pid) != began


def _began(pid: int) -> int:
    """When a process began, in ticks of the clock since the start of the host; 0: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])  # a zombie keeps nothing


def piece_info(snapshot: Snapshot, name: PieceName) -> dict[str, Any]:
    """What others are told of a piece."""
    return {
        "snapshot": snapshot.id,
        "era": snapshot.era,
        "step": snapshot.step,
        "layout": snapshot.layout.id,
        "piece": list(name),
        "process": _process(),
        "sums": {str(member): list(one) for member, one in snapshot.sums.items()},
    }
