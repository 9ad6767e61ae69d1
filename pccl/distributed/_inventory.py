"""What a process tells the others before a sharded state is restored."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from pccl._core.errors import StateLostError
from pccl.state._local.agreement import Terms
from pccl.state._snapshots.boxes import ShardMap, list_of, shards_from, shards_tree, text_of, whole_number
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.images import Sum
from pccl.state._snapshots.placement import Redundancy
from pccl.state._snapshots.restore import STEP_MAX, Held, Source, choose, is_whole
from pccl.state._snapshots.snapshot import ERA_MAX, ID_MAX, MEMBERS_OF_RUN, PLACE_MAX, Layout
from pccl.state._snapshots.stock import layouts_from

_log = logging.getLogger("pccl.distributed")

LIVE = -1
"""Stands for the id of a snapshot: the tensors of the training themselves."""


class Standing(NamedTuple):
    """What each process tells all others first in a meeting, whether its model is sharded or not. Yes or no is 1 or 0."""

    tells: int
    revision: int
    """0: it has nothing of the run."""
    loaded: int
    step: int
    new: int
    wanted: int
    """The rank that its launcher gave it, or -1; of a sharded model the number of bytes that it tells next."""
    always: int
    at_start: int
    """The digests of its Terms."""

    def order(self) -> tuple[int, int, int, int]:
        """The one with the highest tells the others its state; the first of these if there are several.

        Steps count at the beginning of a run only: later all members are at the same one.
        """
        step = self.step if self.loaded or not self.revision else 0
        return int(self.tells and not (self.new and self.revision)), self.revision, self.loaded, step


class Told(NamedTuple):
    """What a process tells the others before a state is restored."""

    host: str
    members: tuple[UUID, ...]
    """In the order of ranks, as it knows it; empty: it joins."""
    revision: int
    """Counts the divisions of the state; 0: it has none of the run."""
    attached: int
    """The number of the last group that it has made."""
    era: int
    version: tuple[int, ...]
    """Of its tensors; alike on members whose tensors belong together. Empty: they are not to be used."""
    shards: ShardMap | None
    held: list[Held]
    layouts: list[str]
    damaged: list[int]
    """Ids of snapshots that are not to be restored."""
    leaves: bool
    """It gives its part to the others, and is a member no longer."""
    replica: int
    """The size of a replica that the run has begun with, as this process knows it; 0: there are no replicas."""


def settings_of(snapshots: Snapshots | None, shards: int) -> Terms:
    """What members need alike of snapshots and meshes, since they take part in the same ones."""
    settings: dict[str, Any] = {"number of dimensions of meshes": 2 if shards else 1, "snapshots": "none"}
    if snapshots is not None:
        settings |= {"snapshots": "some", "copies or code of Snapshots": snapshots.redundancy}
        settings |= {f"{key} of Snapshots": getattr(snapshots, key) for key in ("every", "name", "linger", "holder")}
    return Terms(settings, {"size of a replica": shards})


def tree_of(told: Told, infos: Sequence[Any]) -> dict[str, Any]:
    shards = None if told.shards is None else shards_tree(told.shards)
    return {**told._asdict(), "members": list(told.members), "held": list(infos), "shards": shards}


def told_of(tree: Any) -> Told:
    """Raises any error for a tree that is malformed."""
    members = tuple(list_of(tree["members"], MEMBERS_OF_RUN))
    version = tuple(whole_number(one, STEP_MAX, -STEP_MAX) for one in tree["version"])
    if len(set(members)) != len(members) or not all(type(one) is UUID for one in members):
        raise ValueError("its members are not a list of uuids")
    return Told(
        text_of(tree["host"]),
        members,
        whole_number(tree["revision"], ERA_MAX),
        whole_number(tree["attached"], ERA_MAX),
        whole_number(tree["era"], ERA_MAX),
        version,
        None if tree["shards"] is None else shards_from(tree["shards"]),
        [Held.of(info) for info in list_of(tree["held"], PLACE_MAX)],
        layouts_from(tree["layouts"]),
        [whole_number(one, ID_MAX) for one in list_of(tree["damaged"], PLACE_MAX)],
        tree["leaves"] is True,
        whole_number(tree["replica"], PLACE_MAX),
    )


def source_of(
    told: Sequence[Told], layouts: Mapping[str, Layout], damaged: set[int], newest: int
) -> tuple[Source | None, int, bool]:
    """What is restored, the rank whose values are taken, and whether it is the tensors as they are. None: a run begins."""
    held = [one.held for one in told]
    if newest == 0:
        try:
            source = choose(held, layouts, damaged)
        except StateLostError as error:
            if any(held):
                _log.warning("%s", f"snapshots of an earlier start cannot be used, so the run begins anew: {error}")
            return None, 0, False
        there = max((one.version[0] for one in told if one.version), default=0)
        if source.order[1] < there:
            _log.warning("%s", f"a snapshot of step {source.order[1]} is kept, and gives way to the step {there} that was loaded")
            return None, 0, False
        text = f"the run goes on from the snapshot of step {source.order[1]}, which an earlier start of this run left in memory"
        _log.warning("%s", f"{text}; give Snapshots another name for a new run")
        return source, source.values[min(source.values)][0], False
    ranks = [rank for rank, one in enumerate(told) if one.revision == newest]
    for version in sorted({told[rank].version for rank in ranks if told[rank].version}, reverse=True):
        having = [rank for rank in ranks if told[rank].version == version]
        live = [one for rank in having if (one := told[rank].shards) is not None]
        if len(live) == len(having) and is_whole(live):
            layout = Layout([told[rank].host for rank in having], live, Redundancy(1, 0))
            images = {slot: [rank] for slot, rank in enumerate(having)}
            return Source(LIVE, (0, 0), layout, images, {}, {}, Sum(0, 0)), having[0], True
    source = choose(held, layouts, damaged)
    return source, source.values[min(source.values)][0], False
