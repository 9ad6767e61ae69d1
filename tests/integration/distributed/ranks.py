"""Runs a function in the ranks of a process group, each in a process of its own.

The processes are forked from a server that has imported torch and pccl once, so that a test costs no import. Nor does the first
optimizer in a process, which imports torch._dynamo.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from performers import preload, start_server, take_environment

SECONDS = 90.0
_CONTEXT = multiprocessing.get_context("forkserver")
for _name in ("torch", "torch._dynamo", "pccl.distributed._elastic", "pccl.distributed._parity"):
    preload(_name)


class RanksFailedError(AssertionError):
    """A rank raised an exception, ended by itself, or did not end in time."""


def run(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
    backend: str = "pccl",
    timeout: float = 30.0,
    seconds: float = SECONDS,
    dead: tuple[int, ...] = (),
) -> list[Any]:
    """Calls `function(*arguments)` in `size` ranks; gives what each returned. `dead` are ranks that the function kills."""
    with tempfile.TemporaryDirectory() as folder:
        job = (str(Path(folder) / "store"), size, backend, timeout, {**os.environ, **(environment or {})}, function, arguments)
        pipes, processes = [], []
        start_server()
        for rank in range(size):
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_work, args=(sender, rank, *job), daemon=True)
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        try:
            return _collect(pipes, time.monotonic() + seconds, dead)
        finally:
            for process in processes:
                process.join(0 if process.exitcode is None and process.pid is None else 10)
                if process.exitcode is None:
                    process.kill()
                    process.join()


def die() -> None:
    """Ends this rank as SIGKILL does."""
    os.kill(os.getpid(), signal.SIGKILL)


def _collect(pipes: list[Connection], end: float, dead: tuple[int, ...]) -> list[Any]:
    results: dict[int, Any] = {}
    failed: list[str] = []
    open_pipes = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes and time.monotonic() < end and not failed:
        for pipe in wait(list(open_pipes), timeout=max(0.0, end - time.monotonic())):
            rank = open_pipes.pop(cast("Connection[Any, Any]", pipe))
            try:
                worked, result = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                worked, result = rank in dead, "it ended without a result"
            if worked:
                results[rank] = result
            else:
                failed.append(f"rank {rank}: {result}")
    failed += [f"rank {rank}: it did not end in time" for rank in open_pipes.values() if not failed]
    if failed:
        raise RanksFailedError("\n".join(failed))
    return [None if rank in dead else results[rank] for rank in range(len(pipes))]


def _work(
    pipe: Connection,
    rank: int,
    store: str,
    size: int,
    backend: str,
    timeout: float,
    environment: dict[str, str],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    faulthandler.enable()
    take_environment(environment)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        dist.init_process_group(
            backend,
            store=dist.FileStore(store, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        result = function(*arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send_bytes(pickle.dumps((True, result)))
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
        raise
