"""The masters that a job starts by itself, and their keys."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pccl import _native
from pccl._core.calls import Deadline
from pccl._core.errors import ConnectError, PCCLError, reason_of
from pccl._host.files import open_log
from pccl._peer.communicator import Communicator
from pccl._run.credentials import environment_has_some
from pccl._run.keys import KeysError
from pccl._run.own_keys import INSECURE_VARIABLE, OwnKeys, check_folder, why_plain
from pccl.distributed._board import PLACE_BYTES, Board, BootstrapError, Place, parsed

MASTERS_MOST = 3
"""A master and standbys that a job starts by itself, each on a node of its own; on a single node there are two."""

UNTIL_EMPTY_SECONDS = 15
"""After which a master that a job has started ends when nobody is there: longer than peers take to notice that another master
is silent and to come to this one."""

LISTENS = "pccl master listening on "
"""What the program of a master prints once it does."""

FIRST_ATTEMPTS = 5
"""To connect to masters that run here, and that are only late where they do not answer."""


@dataclass(frozen=True)
class Job:
    """The masters of a job, and the keys that the job has made."""

    masters: str
    own: Sequence[str] = ()
    """The masters that this rank has started."""
    master_keys: str = ""
    peer_keys: str = ""
    """Files; "": those of PCCL_KEYS, or none."""


def start_masters(board: Board, places: Sequence[Place], held: contextlib.ExitStack) -> Job:
    """Starts those masters of the job that this rank has to. At rank 0, `held` keeps the keys of the job in their folder."""
    starters = _starters([place.node for place in places])
    local = len({place.network for place in places}) == 1
    master_keys, peer_keys = ("", "") if environment_has_some() else _share_keys(board, held, local=local)
    own = [number for number, rank in enumerate(starters) if rank == board.rank]
    with contextlib.ExitStack() as stack:
        for number in own:
            address = "127.0.0.1" if local else places[board.rank].address
            board.tell("master", number, f"{address}:{_reserve(stack, address)}")
        listed = [board.read("master", number, rank) for number, rank in enumerate(starters)]
        for number in own:
            problem = start_master(listed[number], ",".join(listed), board.deadline, new=True, keys=master_keys)
            board.tell("started", number, problem)
    for number, rank in enumerate(starters):
        problem = board.read("started", number, rank)
        if problem:
            given = ". If a master runs already, give all ranks PCCL_MASTER=host:port" if environment_has_some() else ""
            raise BootstrapError(f"rank {rank} could not start the master {listed[number]}: {problem}{given}")
    return Job(",".join(listed), [listed[number] for number in own], master_keys, peer_keys)


def _share_keys(board: Board, held: contextlib.ExitStack, *, local: bool) -> tuple[str, str]:
    """Makes keys for the job at rank 0. Returns the paths of the files for masters and for peers; "" without encryption.

    Believes nothing of what anybody else may have written to the store. `local`: all ranks say that they are on one host.
    """
    plain = why_plain()
    if not local:
        if plain:
            return "", ""
        raise BootstrapError(
            "the ranks are on several hosts, and the job has no keys: run `pccl keys run`, copy run.master to all hosts, and "
            f"give all ranks PCCL_KEYS=run.master; or give them {INSECURE_VARIABLE}=1 in a network that you trust"
        )
    if board.rank == 0:
        folder, problem = "", plain
        if not plain:
            try:
                folder = str(held.enter_context(OwnKeys()).folder)
            except (OSError, KeysError, PCCLError) as error:
                problem = reason_of(error)
        board.tell("keys", 0, json.dumps([folder, problem]))
    folder, problem = parsed(board.read("keys", 0, 0), PLACE_BYTES, {0: "str", 1: "str"}).values()
    if folder:
        try:
            return check_folder(folder)
        except (OSError, KeysError) as error:
            problem = reason_of(error)
    elif plain:
        return "", ""
    raise BootstrapError(
        f"rank {board.rank} has no keys that rank 0 made for this job: {problem}. Give all ranks PCCL_KEYS=RUN.master, a file "
        f"that `pccl keys RUN` writes, or {INSECURE_VARIABLE}=1 to do without encryption"
    )


def _starters(nodes: Sequence[str]) -> list[int]:
    """Which rank starts each of the masters: the first one of its node."""
    first = {node: rank for rank, node in reversed(list(enumerate(nodes)))}
    ranks = sorted(first.values())[:MASTERS_MOST]
    return ranks if len(ranks) > 1 else [0, 0]


def _reserve(stack: contextlib.ExitStack, address: str) -> int:
    """A port that nobody else gets until the stack is left; a master may listen on it meanwhile."""
    host = address.strip("[]")
    held = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    port: int = held.getsockname()[1]
    return port


def start_master(address: str, listed: str, deadline: Deadline, *, new: bool = False, keys: str = "") -> str:
    """Starts a master as a process of its own. Returns "" once it listens, or what went wrong.

    `new`: nobody was ever at this address, so nobody has to wait for members of an earlier run. `keys`: those that the job has
    made; the last master removes them.

    The master outlives this process, keeps none of its files open, and ends by itself once nobody is there. Its log goes to the
    file named by PCCL_MASTER_LOG, if there is one.
    """
    log = os.environ.get("PCCL_MASTER_LOG")
    try:
        target = open_log(log) if log else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        return f"it cannot write its log to {log}: {error.strerror}"
    command = [str(Path(_native.__file__).with_name("spawned_master")), "--log", str(target)]
    command += ["--leave", "--until-empty", str(1000 * UNTIL_EMPTY_SECONDS), "--listen", address, "--masters", listed]
    command += ["--new"] if new else []
    command += ["--keys", keys, "--own-keys"] if keys else []
    try:
        begun = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(target,),
            timeout=deadline.remaining(),
        )
    except subprocess.TimeoutExpired:
        return "it did not listen within the timeout of init_process_group"
    except OSError as error:
        return str(error)
    finally:
        os.close(target)
    said = (
        begun.stdout.strip().removeprefix(f"pccl master cannot listen on {address}: ").removeprefix("pccl master cannot listen: ")
    )
    return "" if LISTENS in said else said or f"it ended without a word (status {begun.returncode})"


def connect_first(comm: Communicator, job: Job, deadline: Deadline) -> None:
    """Connects to masters that listen, or have ended for want of a peer, where processes get very little of a processor.

    One that answers too late is passed over for a standby, which begins no run.
    """
    failed = 0
    while True:
        try:
            comm.connect(2, timeout=deadline.remaining())
            return
        except ConnectError:
            restarted = [start_master(one, job.masters, deadline, keys=job.master_keys) == "" for one in job.own]
            failed += not any(restarted)
            if failed == FIRST_ATTEMPTS:
                raise
