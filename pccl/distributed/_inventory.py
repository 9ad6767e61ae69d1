"""What a process tells the others before a sharded state is restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from pccl.state._snapshots.boxes import ShardMap, list_of, shards_from, shards_tree, text_of, whole_number
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.restore import STEP_MAX, Held
from pccl.state._snapshots.snapshot import ERA_MAX, ID_MAX, PLACE_MAX
from pccl.state._snapshots.stock import layouts_from


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
    settings: str
    """Of its snapshots and meshes: the same on all members, since they take part in the same ones."""
    replica: int
    """The size of a replica that the run has begun with, as this process knows it; 0: there are no replicas."""


def settings_of(snapshots: Snapshots | None, shards: int, every: int) -> str:
    mesh = f"a mesh of {2 if shards else 1} dimension{'s'[: bool(shards)]}, in Elastic of every={every}"
    if snapshots is None:
        return f"no snapshots, and {mesh}"
    return f"Snapshots of every={snapshots.every}, code={tuple(snapshots.redundancy)}, and {mesh}"


def tree_of(told: Told, infos: Sequence[Any]) -> dict[str, Any]:
    shards = None if told.shards is None else shards_tree(told.shards)
    return {**told._asdict(), "members": list(told.members), "held": list(infos), "shards": shards}


def told_of(tree: Any) -> Told:
    """Raises any error for a tree that is malformed."""
    members, version = tuple(tree["members"]), tuple(whole_number(one, STEP_MAX, -STEP_MAX) for one in tree["version"])
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
        text_of(tree["settings"]),
        whole_number(tree["replica"], PLACE_MAX),
    )
