"""Tasks and reports of demo runs that never were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pccl.demo.run import (
    Admitted,
    Finished,
    Halted,
    Joined,
    Kill,
    Options,
    Prepared,
    Ready,
    Recovered,
    Run,
    Stepped,
    Task,
)


def options(**changes: Any) -> Options:
    fields: dict[str, Any] = {
        "peers": 3,
        "steps": 20,
        "kill_step": 10,
        "kill_peer": 2,
        "join_step": 15,
        "kill_at_join": None,
        "seed": 1,
        "threads": 1,
        "data": None,
        "out": Path("out"),
    }
    return Options(**{**fields, **changes})


def task(**changes: Any) -> Task:
    fields: dict[str, Any] = {"index": 0, "peers": 3, "shard": 0, "shards": 3, "master": "h:1", "steps": 9, "seed": 0}
    return Task(**{**fields, "threads": 1, **changes})


def stepped(step: int, loss: float, **changes: Any) -> Stepped:
    fields: dict[str, Any] = {"world": 2, "tokens": 100, "tx_bytes": 10, "rx_bytes": 20, "digest": None}
    return Stepped(step=step, loss=loss, **{**fields, **changes})


def joined(**changes: Any) -> Joined:
    fields: dict[str, Any] = {"step": 15, "world": 3, "rx_bytes": 5 << 20, "leaves": 46, "donors": 2, "digest": "d15"}
    return Joined(**{**fields, "connect_seconds": 0.05, "sync_seconds": 0.004, **changes})


def admitted(**changes: Any) -> Admitted:
    fields: dict[str, Any] = {"step": 15, "world": 3, "held_seconds": 0.012, "tx_bytes": 5 << 19, "digest": "d15"}
    return Admitted(**{**fields, **changes})


def finished_run(spoil: Callable[[Run], None] | None = None, **changes: Any) -> Run:
    """A run of 20 steps as it should be: loss from 4 to 2, peer 2 killed in step 10, peer 3 comes after step 15."""
    run = Run(options(**changes))
    for peer in run.peers:
        run.take(peer, Prepared(), 0.0)
    for peer in run.peers[:3]:
        run.take(peer, Ready(world=3, parameters=1000, validation=4.0), 0.0)
        for step in range(1, 15 if peer.index < 2 else 10):
            run.take(peer, stepped(step, 4 - step / 10, digest=f"d{step}"), float(step))
    run.take(run.peers[2], Halted(step=10, place="2 of its 4 reduces launched"), 10.0)
    run.peers[2].status = "killed"
    run.kill = Kill(step=10, at=10.0)
    for peer in run.peers[:2]:
        run.take(peer, Recovered(step=10, failed=2, buckets=4, world=2, at=10.05), 10.1)
        run.take(peer, admitted(), 15.0)
    run.take(run.peers[3], joined(), 15.0)
    for peer in (run.peers[0], run.peers[1], run.peers[3]):
        for step in range(15, 21):
            run.take(peer, stepped(step, 4 - step / 10, digest=f"d{step}", world=3), float(step))
        run.take(peer, Finished(step=20, digest="d20", validation=2.0, prompt="a", sample="b"), 21.0)
        peer.status = "finished"
    if spoil is not None:
        spoil(run)
    return run
