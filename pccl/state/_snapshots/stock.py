"""What a process can give of snapshots, and what all of them together have."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from pccl._holder import HolderError
from pccl.state._snapshots.images import Memory
from pccl.state._snapshots.keeper import Keeper, Layout, PieceName, pieces_of
from pccl.state._snapshots.restore import Held
from pccl.state._snapshots.talk import Talk

_log = logging.getLogger("pccl.state")


class Stock:
    """The pieces of a process, and those that the holder of its host keeps, as they are when this is made."""

    def __init__(self, keeper: Keeper | None) -> None:
        """`keeper`: of the process; None: it takes no snapshots, and has nothing."""
        self._keeper = keeper
        self.infos: list[dict[str, Any]] = []
        """What others are told of each piece: a tree, and what `Held.of` takes."""
        self._places: dict[tuple[int, PieceName], Callable[[], Memory]] = {}
        if keeper is None:
            return
        self.infos += pieces_of(keeper.snapshots)
        for snapshot in keeper.snapshots:
            for name, memory in snapshot.pieces.items():
                self._places[snapshot.id, name] = functools.partial(_itself, memory)
        try:
            holder = keeper.holder(start=False)
            for kept in holder.kept() if holder is not None else []:
                if "piece" not in kept.info:
                    continue
                one = Held.of(kept.info)
                if (one.snapshot, one.piece) not in self._places:
                    self.infos.append(kept.info)
                    self._places[one.snapshot, one.piece] = _Opened(keeper, kept.key, kept.nbytes)
        except HolderError as error:
            _log.warning("%s", f"snapshots: {error}")
            keeper.abandon()

    @property
    def held(self) -> list[Held]:
        """All pieces."""
        return [Held.of(info) for info in self.infos]

    @property
    def layouts(self) -> list[str]:
        """The ids of their layouts."""
        return sorted({str(info["layout"]) for info in self.infos})

    def pieces(self, snapshot: int) -> dict[PieceName, Memory]:
        """The pieces of a snapshot. HolderError, KeyError, MemoryError: the holder cannot give one."""
        return {name: place() for (id_, name), place in self._places.items() if id_ == snapshot}

    def exchange_layouts(self, talk: Talk, told: Sequence[Sequence[str]]) -> dict[str, Layout]:
        """The layouts of all snapshots that somebody holds a piece of. `told[member]`: the ids that it has."""
        found: dict[str, Layout] = {}
        for wanted in sorted({name for one in told for name in one}):
            root = next(rank for rank, one in enumerate(told) if wanted in one)
            content = talk.broadcast(root, self._layout(wanted) if root == talk.own else None)
            try:
                layout = Layout.decoded(content) if content else None
            except ValueError as error:
                _log.error("%s", f"snapshots: {error}")
                continue
            if layout is not None and layout.id == wanted:
                found[wanted] = layout
        return found

    def _layout(self, name: str) -> bytes:
        """As bytes; none if the holder cannot give it."""
        assert self._keeper is not None
        for snapshot in self._keeper.snapshots:
            if snapshot.layout.id == name:
                return snapshot.layout.encoded()
        try:
            holder = self._keeper.holder(start=False)
            kept = holder.kept() if holder is not None else []
            one = next(one for one in kept if one.info.get("layout") == name and "piece" not in one.info)
            return b"" if holder is None else Memory(holder.get(one.key), one.nbytes).bytes.numpy().tobytes()
        except (HolderError, KeyError, StopIteration):
            return b""


def _itself(memory: Memory) -> Memory:
    return memory


class _Opened:
    """A piece at the holder, mapped when it is needed."""

    def __init__(self, keeper: Keeper, key: str, nbytes: int) -> None:
        self._keeper, self._key, self._nbytes = keeper, key, nbytes
        self._memory: Memory | None = None

    def __call__(self) -> Memory:
        if self._memory is None:
            holder = self._keeper.holder(start=False)
            if holder is None:
                raise HolderError("the holder of this host has ended")
            self._memory = Memory(holder.get(self._key), self._nbytes)
        return self._memory
