"""How long members wait for a newcomer, by the size of the state and the part of it that each step changes."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import harness
import netlab
from harness import MIB, Master, Peer, Row

import pccl

METHOD = """Two members train: a step sleeps, as a forward and a backward pass do that change nothing, sums 1 MiB, and adds 1 to
the first part of the state, one tensor of float32. A third peer joins, in turn without and with `connect(state=)`. Members look
for it right after the change, or right before the next one (`look`). `pause_ms` is the time that a member spends in
`are_peers_pending`, `update_topology` and `sync_shared_state` at the step that admits it; `beyond_hash_ms` the same without the
hash of its own state; `copy_s` the newcomer's `connect`; `step_ms` and `step_beside_ms` the median step before it came and
while it was in `connect`. Medians over the blocks, of the slower member."""

DILOCO = """ DiLoCo: a round sleeps, changes the model and makes an outer step; `pause_ms` is what the outer step that admits the
newcomer takes more than the others, which `step_ms` is the median of; the state is outer parameters and momentum."""

MEMBERS = 2
STEPS_BEFORE, STEPS_AFTER = 10, 3
BAR_MS, BAR_MIB, BAR_PART = 100.0, 1024, 0.01


def worker(peer: Peer, address: str, size: int, part: float, before: bool, sleep: float, precopy: bool) -> Row:
    import numpy as np

    array = np.full(size // 4, 1 + peer.rank, np.float32)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, "a")])
    newcomer = peer.rank == MEMBERS
    with pccl.Communicator(address) as comm:
        if newcomer:
            peer.barrier.wait()
        start = time.perf_counter()
        comm.connect(state=state if precopy else None)
        row: Row = {"copy": time.perf_counter() - start}
        comm.wait_for_peers(2, timeout=60)
        comm.sync_shared_state(state)
        row |= train(peer, comm, state, array[: int(array.size * part)], newcomer, before, sleep)
        row["hash"] = state.hash()
    return row


def train(
    peer: Peer, comm: pccl.Communicator, state: pccl.SharedState, changed: Any, newcomer: bool, before: bool, sleep: float
) -> Row:
    """`before`: members look for newcomers right before the change, so a newcomer's first step is the sum and the change."""
    import numpy as np

    ones = np.ones(MIB // 4, np.float32)
    steps: list[float] = []
    row: Row = {}
    after = STEPS_AFTER
    sleeps = not newcomer
    while after > 0:
        start = time.perf_counter()
        if before and sleeps:
            time.sleep(sleep)
        sleeps = True
        looks = time.perf_counter()
        while comm.are_peers_pending():
            comm.update_topology()
            state.push_revision()
            info = comm.sync_shared_state(state)
            row = {"pause": time.perf_counter() - looks, "hashing": info.hash_seconds, "steps": list(steps)}
        after -= comm.world_size > MEMBERS
        if not before:
            time.sleep(sleep)
        comm.all_reduce(ones, op=pccl.ReduceOp.AVG)
        changed += 1
        steps.append(time.perf_counter() - start)
        if not newcomer and len(steps) == STEPS_BEFORE:
            peer.barrier.wait()
    return row


def diloco_worker(peer: Peer, address: str, size: int, sleep: float, precopy: bool) -> Row:
    """A round is a sleep, a change of the model, and an outer step. The pause is what the round with the newcomer takes more."""
    import torch

    from pccl.diloco import DiLoCo

    class After(DiLoCo):
        """Lets newcomers in after an outer step, as all did before."""

        def _admits_early(self) -> bool:
            return False

    torch.set_num_threads(1)
    newcomer = peer.rank == MEMBERS
    noise = torch.randn(size // 8, generator=torch.Generator().manual_seed(peer.rank))  # what cannot be packed
    model = torch.nn.ParameterDict({"a": torch.nn.Parameter(noise.clone())})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if newcomer:
        peer.barrier.wait()
    start = time.perf_counter()
    kind = DiLoCo if precopy else After
    with kind(model, pccl.Communicator(address), optimizer, sync_every=1, peers=MEMBERS) as diloco:
        row: Row = {"copy": time.perf_counter() - start}
        steps: list[float] = []
        after = int(newcomer)
        while after < STEPS_AFTER:
            start = time.perf_counter()
            time.sleep(sleep)
            with torch.no_grad():
                model["a"] += noise
            done = diloco.step()
            assert done is not None
            steps.append(done.seconds)
            after += done.world_size > MEMBERS
            if done.admitted:
                row |= {"admitting": done.seconds, "steps": steps[1:-1]}
            if not newcomer and len(steps) == STEPS_BEFORE:
                peer.barrier.wait()
        row["hash"] = diloco.parity
    if not newcomer:
        row |= {"pause": row["admitting"] - statistics.median(row["steps"]), "hashing": 0.0}
    return row


def join(work: Any = worker, megabits: float = 0.0, **arguments: Any) -> Row:
    """One newcomer comes. `megabits`: of each peer, in namespaces; 0: over loopback."""
    with contextlib.ExitStack() as stack:
        if megabits:
            lab = stack.enter_context(netlab.Lab())
            places = lab.star(MEMBERS + 1)
            for place in places:
                lab.limit(place, megabits)
            fleet = stack.enter_context(netlab.fleet_at(places, work, **arguments))
        else:
            master = stack.enter_context(Master())
            fleet = stack.enter_context(harness.Fleet(work, MEMBERS + 1, address=master.address, **arguments))
        *members, newcomer = fleet.results()
    if len({row["hash"] for row in (*members, newcomer)}) != 1:
        raise harness.BenchError("the contents differ after the newcomer has joined")
    slower = max(members, key=lambda row: row["pause"])
    return {
        "pause": slower["pause"],
        "beyond_hash": slower["pause"] - slower["hashing"],
        "copy": newcomer["copy"],
        "step": statistics.median(slower["steps"][:STEPS_BEFORE]),
        "step_beside": statistics.median(slower["steps"][STEPS_BEFORE:] or [slower["pause"]]),
    }


def measure(size: int, part: float, before: bool, sleep: float, blocks: int) -> list[Row]:
    """Without and with a copy before, in turn."""
    found: dict[bool, list[Row]] = {False: [], True: []}
    for block in range(blocks):
        for precopy in sorted(found, reverse=block % 2 == 1):
            found[precopy].append(join(size=size, part=part, before=before, sleep=sleep, precopy=precopy))
    rows = []
    for precopy, made in found.items():
        median = {name: statistics.median(row[name] for row in made) for name in made[0]}
        row: Row = {"MiB": size // MIB, "changed": f"{part:.1%}", "look": "before" if before else "after"}
        row["connect"] = "state=state" if precopy else ""
        row |= {f"{name}_ms": median[name] * 1e3 for name in ("pause", "beyond_hash", "step", "step_beside")}
        rows.append(row | {"copy_s": median["copy"]})
    return rows


def measure_diloco(size: int, sleep: float, blocks: int, megabits: float) -> list[Row]:
    """After an outer step, and before it with a copy before, in turn. `size`: of outer parameters and momentum."""
    found: dict[bool, list[Row]] = {False: [], True: []}
    for block in range(blocks):
        for precopy in sorted(found, reverse=block % 2 == 1):
            found[precopy].append(join(diloco_worker, megabits, size=size, sleep=sleep, precopy=precopy))
    return [
        {"MiB": size // MIB, "changed": "DiLoCo", "look": "before" if precopy else "after"}
        | {f"{name}_ms": statistics.median(row[name] for row in made) * 1e3 for name in ("pause", "step")}
        | {"copy_s": statistics.median(row["copy"] for row in made)}
        for precopy, made in found.items()
    ]


def run() -> None:
    parser = harness.parser(__doc__ or "", blocks=5)
    parser.add_argument("--mib", nargs="+", type=int, default=[256, BAR_MIB], help="sizes of the state")
    parser.add_argument("--changed", nargs="+", type=float, default=[0.0, BAR_PART, 0.1, 1.0], help="parts that a step changes")
    parser.add_argument("--look", nargs="+", choices=["after", "before"], default=["after", "before"], help="of the change")
    parser.add_argument("--step-ms", type=float, default=0.0, help="sleep of a step; 0: 50 ms, or 500 before the change")
    parser.add_argument("--diloco", action="store_true", help="DiLoCo: newcomers before or after an outer step")
    parser.add_argument("--megabits", type=float, default=0.0, help="of the link of each peer, with --diloco; 0: loopback")
    parser.add_argument("--quick", action="store_true", help="64 MiB, 1 %% after and all before the change, one block")
    args = parser.parse_args()
    plans = [(mib, part, look == "before") for mib in args.mib for part in args.changed for look in args.look]
    if args.quick:
        plans, args.blocks = [(64, BAR_PART, False), (64, 1.0, True)], 1
    where = harness.machine()
    rows = []
    if args.diloco:
        sleep = (args.step_ms or 1000.0) / 1e3
        rows = [row for mib in args.mib for row in measure_diloco(mib * MIB, sleep, args.blocks, args.megabits)]
        harness.report(args, "joining", METHOD + DILOCO, where, rows, [])
        return
    for mib, part, before in plans:
        sleep = (args.step_ms or (500.0 if before else 50.0)) / 1e3
        rows += measure(mib * MIB, part, before, sleep, args.blocks)
    bars = [
        harness.bar(
            f"members wait for a newcomer with {BAR_MIB} MiB of which a step changes {row['changed']}, {row['look']}",
            f"below {BAR_MS:g} ms",
            f"{row['pause_ms']:.0f} ms",
            row["pause_ms"] < BAR_MS,
        )
        for row in rows
        if row["MiB"] == BAR_MIB and row["connect"]
    ]
    harness.report(args, "joining", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
