"""What a process can give of snapshots, and what all of them together have."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from pccl._host.holder import HolderError
from pccl.state._snapshots.boxes import list_of, text_of
from pccl.state._snapshots.images import Memory
from pccl.state._snapshots.kept import Kept, piece_info
from pccl.state._snapshots.restore import Held
from pccl.state._snapshots.snapshot import Layout, PieceName
from pccl.state._snapshots.talk import Talk

_log = logging.getLogger("pccl.state")


LAYOUTS_MAX = 256
"""That a member may tell of: each costs a message to all."""


def layouts_from(tree: Any) -> list[str]:
    """What another member tells of `Stock.layouts`. ValueError: it is malformed."""
    return [text_of(one) for one in list_of(tree, LAYOUTS_MAX)]


class Stock:
    """The pieces of a process, and those that the holder of its host keeps, as they are when this is made."""

    def __init__(self, kept: Kept | None) -> None:
        """`kept`: of the process; None: it takes no snapshots, and has nothing."""
        self._kept = kept
        self.infos: list[dict[str, Any]] = []
        """What others are told of each piece: a tree, and what `Held.of` takes."""
        self._layouts: dict[str, Layout] = {}
        self._places: dict[tuple[int, PieceName], Callable[[], Memory]] = {}
        if kept is None:
            return
        for snapshot in kept.snapshots:
            for name, memory in snapshot.pieces.items():
                if (snapshot.id, name) not in kept.unusable:
                    self.infos.append(piece_info(snapshot, name))
                    self._places[snapshot.id, name] = lambda memory=memory: memory  # type: ignore[misc]
        try:
            holder = kept.holder(start=False)
            for stored in holder.kept() if holder is not None else []:
                if "piece" not in stored.info:
                    continue
                try:
                    one = Held.of(stored.info)
                except ValueError as error:  # of another version of the library
                    _log.warning("%s", f"snapshots: the holder of this host keeps what cannot be read: {error}")
                    continue
                if (one.snapshot, one.piece) not in {*self._places, *kept.unusable}:
                    self.infos.append(stored.info)
                    self._places[one.snapshot, one.piece] = functools.cache(
                        functools.partial(_mapped, kept, stored.key, stored.nbytes)
                    )
        except HolderError as error:
            _log.warning("%s", f"snapshots: {error}")
            kept.abandon()

    @property
    def held(self) -> list[Held]:
        """All pieces."""
        return [Held.of(info) for info in self.infos]

    @property
    def layouts(self) -> list[str]:
        """The ids of their layouts."""
        return sorted({str(info["layout"]) for info in self.infos})

    def pieces(self, snapshot: int) -> dict[PieceName, Memory]:
        """The pieces of a snapshot. HolderError, KeyError, MemoryError: the holder cannot give one, or gives another size."""
        found = {name: place() for (id_, name), place in self._places.items() if id_ == snapshot}
        layouts = {str(info["layout"]) for info in self.infos if info["snapshot"] == snapshot} & self._layouts.keys()
        wrong = [
            name
            for name, memory in found.items()
            for one in layouts
            if self._layouts[one].has(name) and self._layouts[one].size_of(name) not in (memory.nbytes, None)
        ]
        if wrong and self._kept is not None:
            self._kept.unusable.update((snapshot, name) for name in wrong)  # nobody is told of them any more
            raise HolderError(
                f"{wrong[0].kind} {wrong[0].place}.{wrong[0].row} of snapshot {snapshot} has another size than told"
            )
        return found

    def exchange_layouts(self, talk: Talk, told: Sequence[Sequence[str]]) -> dict[str, Layout]:
        """The layouts of all snapshots that somebody holds a piece of. `told[member]`: the ids that it has."""
        for wanted in sorted({name for one in told for name in one}):
            for root in [rank for rank, one in enumerate(told) if wanted in one]:
                content = talk.broadcast(root, self._layout(wanted) if root == talk.own else None)
                try:
                    layout = Layout.decoded(content) if content else None
                except ValueError as error:
                    _log.error("%s", f"snapshots: member {root} has told a malformed layout: {error}")
                    continue
                if layout is not None and layout.id == wanted:
                    self._layouts[wanted] = layout
                    break
        return self._layouts

    def _layout(self, name: str) -> bytes:
        """As bytes; none if the holder cannot give it."""
        assert self._kept is not None
        for snapshot in self._kept.snapshots:
            if snapshot.layout.id == name:
                return snapshot.layout.encoded()
        try:
            holder = self._kept.holder(start=False)
            kept = holder.kept() if holder is not None else []
            one = next(one for one in kept if one.info.get("layout") == name and "piece" not in one.info)
            return b"" if holder is None else Memory(holder.get(one.key), one.nbytes).bytes.numpy().tobytes()
        except (HolderError, KeyError, StopIteration):
            return b""


def _mapped(kept: Kept, key: str, nbytes: int) -> Memory:
    """A piece at the holder."""
    holder = kept.holder(start=False)
    if holder is None:
        raise HolderError("the holder of this host has ended")
    return Memory(holder.get(key), nbytes)
