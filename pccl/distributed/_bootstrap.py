"""How the processes of a job find each other: through torch's store, which is used for nothing else.

1. Each rank writes down where it runs, and reads where all the others do.
2. Unless PCCL_MASTER names masters, the first ranks of up to three nodes each start one: the master on the first node, standbys
   on the others. On a single node the first rank starts both. The run so has no single process that it depends on, and with
   three nodes or more no single node. If all ranks are on one host and PCCL_KEYS names no keys, rank 0 makes some for the job;
   the store has the path of their folder alone.
3. All connect, and write down the ids that they have in the run, which makes the table of ranks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from pccl._core.calls import Deadline
from pccl._core.errors import PCCLError, PCCLTimeoutError, Result, reason_of
from pccl._peer.communicator import Communicator
from pccl._run.master import RunState, run_state
from pccl._run.own_keys import why_plain
from pccl._run.supervisor import restore_environment
from pccl.distributed._board import Board, BootstrapError, listed_ranks, own_place
from pccl.distributed._own_masters import Job, connect_first, start_masters
from pccl.distributed._this_run import this_run

if TYPE_CHECKING:
    import torch.distributed as dist

ATTEMPTS = 1000
"""To connect; the deadline comes first."""

BEGIN_PART = 0.8
"""Of what is left of the timeout, after which rank 0 gives up, so that the others hear of it within theirs."""

JOIN = "join"
"""What rank 0 tells the others where the run goes on without them."""


def connect(
    store: dist.Store,
    rank: int,
    world_size: int,
    timeout: timedelta,
    name: str | None = None,
    membership: str = "elastic",
    *,
    stands_in: bool = False,
) -> tuple[Communicator, tuple[UUID, ...]]:
    """Connects this process to its job; gives the communicator and the ids of all ranks, in the order of the ranks.

    A process that is to join a run that goes on is alone until its first `Elastic.sync`: its communicator is not connected, and
    there is one id. That is one in which `join` was called, which has PCCL_JOIN=1, or which torchrun has started anew while
    the run at PCCL_MASTER goes on. BootstrapError: what is missing, or what the ranks disagree about, and what to do; at the
    latest after `timeout`.
    """
    meant = this_run.meant
    if meant is not None:
        return _newcomer(*meant, name)
    if os.environ.get("PCCL_JOIN", "") == "1":
        made = _newcomer(os.environ.get("PCCL_MASTER", ""), "", name)
        restore_environment()
        return made
    board = Board(store, rank, world_size, Deadline(timeout.total_seconds()), timeout)
    place = own_place(store, world_size, membership, stands_in=stands_in)
    _warn_without_supervisor(rank)
    places = board.meet(place)
    given = next((one.masters for one in places if one.masters), "")
    if given and not place.masters and not place.keys and not why_plain():  # anybody may have written it to the store
        text = f"rank {rank} has no PCCL_MASTER, and another rank names {given}; give all ranks the same"
        raise BootstrapError(text)
    with contextlib.ExitStack() as held:
        job = Job(given) if given else start_masters(board, places, held)
        try:
            comm = Communicator(job.masters, name=name, keys=job.peer_keys or None)
        except (ValueError, PCCLError) as error:
            problem = f"rank {rank} cannot make a communicator: {reason_of(error)}"
            if rank == 0:
                board.tell("run", 0, problem)
            raise BootstrapError(problem) from None
        try:
            if _join_run(comm, board, job) == JOIN:
                comm.close()
                return _newcomer(job.masters, job.peer_keys, name)
            members = tuple(UUID(text) for text in board.exchange("member", str(comm.uuid)))
        except BaseException:
            comm.close()
            raise
    this_run.note(job.masters, job.peer_keys)
    return comm, members


def _newcomer(addresses: str, path: str, name: str | None) -> tuple[Communicator, tuple[UUID, ...]]:
    """A communicator that is to be connected later, and a group of this process alone."""
    if not addresses:
        raise BootstrapError("a process that joins needs the masters of the run: PCCL_MASTER=host:port, or join('host:port')")
    try:
        comm = Communicator(addresses, name=name, keys=path or None)
    except (ValueError, PCCLError) as error:
        raise BootstrapError(f"the run to join at {addresses}: {reason_of(error)}") from None
    this_run.to_join = addresses
    this_run.note(addresses, path)
    return comm, (uuid4(),)


def _join_run(comm: Communicator, board: Board, job: Job) -> str:
    """Returns once all ranks are members of one run, and nobody else; or JOIN, where there is one that they shall join.

    Rank 0 goes first: it must find nobody there.
    """
    addresses = job.masters
    if board.rank == 0:
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
        joins = restarted and not job.own and run_state(addresses) is RunState.SERVED
        problem = JOIN if joins else _begin_run(comm, board, job)
        board.tell("run", 0, problem)
    else:
        problem = board.read("run", 0, 0)
    if problem == JOIN:
        return JOIN
    if problem:
        raise BootstrapError(problem, Result.MASTER_CONNECTION_FAILED)

    def not_here() -> str:
        away = [rank for rank in range(board.world_size) if not board.has_told("connected", rank)]
        if not away:
            return f"all ranks have connected to {addresses}, but the run does not have all of them yet"
        return f"{listed_ranks(away, board.world_size)} not joined the run at {addresses}"

    try:
        if board.rank != 0:
            board.patiently(functools.partial(comm.connect, ATTEMPTS), not_here)
        board.tell("connected", board.rank, "")
        board.patiently(functools.partial(comm.wait_for_peers, board.world_size), not_here)
        # A vote: when it has ended, all are in the epoch that has all of them, and a standby can take it up without rank 0.
        board.patiently(comm.are_peers_pending, lambda: "not all ranks have voted")
    except PCCLTimeoutError as error:
        text = f"rank {board.rank} has waited at the master {addresses} for the timeout of init_process_group: {error.detail}"
        raise BootstrapError(text, error.result) from None
    except PCCLError as error:
        text = f"rank {board.rank} cannot connect to the master {addresses}: {reason_of(error)}"
        raise BootstrapError(text, error.result) from None
    return ""


_warned = False


def _warn_without_supervisor(rank: int) -> None:
    """Warns once if torchrun, which ends a job when one of its processes dies, started this process without a supervisor."""
    global _warned
    if rank == 0 and "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("PCCL_SUPERVISED") != "1" and not _warned:
        _warned = True
        warnings.warn(
            "torchrun ends the whole job when one of its processes dies: to survive that, launch it as "
            "`torchrun ... -m pccl.distributed.run script.py`, or call pccl.distributed.supervise() first",
            RuntimeWarning,
            stacklevel=2,
        )


def _wrong_limits(world_size: int) -> str:
    """Returns why a job of this size would wait in vain with the numbers of members that the environment permits, or ""."""
    least, most = (os.environ.get(name, "") for name in ("PCCL_MIN_MEMBERS", "PCCL_MAX_MEMBERS"))
    if most.isdecimal() and 0 < int(most) < world_size:
        return (
            f"PCCL_MAX_MEMBERS={most} is less than the world size {world_size}; raise it, or start fewer processes, and spares "
            "with pccl.distributed.join()"
        )
    if least.isdecimal() and int(least) > world_size:
        return f"PCCL_MIN_MEMBERS={least} is more than the world size {world_size}; lower it, or start more processes"
    return ""


def _begin_run(comm: Communicator, board: Board, job: Job) -> str:
    """Connects the first member of the run; gives "" or what went wrong."""
    problem = _wrong_limits(board.world_size)
    if problem:
        return problem
    addresses = job.masters
    limit = board.deadline.remaining()
    limit = None if limit is None else limit * BEGIN_PART
    try:
        if job.own:
            connect_first(comm, job, Deadline(limit))
        else:
            comm.connect(ATTEMPTS, timeout=limit)
    except PCCLTimeoutError as error:
        return (
            f"rank 0 cannot begin a run at the master {addresses}: {error.detail}. Start one there with `pccl master`, or leave "
            "PCCL_MASTER out. If it serves another job, name a run of its own: PCCL_MASTER=host:port/name"
        )
    except PCCLError as error:
        return f"rank 0 cannot connect to the master {addresses}: {reason_of(error)}"
    there = comm.global_world_size
    if there == 1:
        return ""
    return (
        f"the master {addresses} serves another job (members: {there - 1}); name a run of its own: PCCL_MASTER=host:port/name. "
        "A process joins a run that goes on by pccl.distributed.join()"
    )
