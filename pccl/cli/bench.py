"""`pccl bench`: peers as processes of this machine, or this process as a peer of a run."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import pccl
from pccl._core.library import _C
from pccl._core.log import LEVELS, NOTICE
from pccl._host.processes import die_with_parent, python
from pccl.cli import top

DTYPES = ["uint8", "int8", "int16", "uint16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64"]

PEER = "from pccl.cli.bench import run_peer; run_peer()"
"""The program of a peer, which takes its task as an argument."""

WARM_UPS = 2
FORM_SECONDS = 60.0
"""How long the peers of a local run may take to find each other."""

Row = dict[str, Any]


class BenchError(Exception):
    """The measurement could not be made; says why."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured, and how."""

    sizes: list[int]  # bytes per tensor
    world: int  # peers
    lanes: int  # connections to each neighbour, 0 = the library's default
    dtype: str
    iterations: int  # timed ops of each size
    in_place: bool
    gloo: bool  # alternate with torch's gloo
    pin: bool = False  # each peer on one core, in turn
    realtime: bool = False  # peers at real-time priority


def run_here(plan: Plan) -> Iterator[Row]:
    """Starts a master and all peers on this machine; gives a row per size, as the first peer measured it."""
    with _warnings_only(), pccl.MasterNode("127.0.0.1:0") as master, tempfile.TemporaryDirectory(prefix="pccl-bench-") as folder:
        peers = [_spawn(plan, f"127.0.0.1:{master.port}", rank, folder) for rank in range(plan.world)]
        try:
            for line in peers[0].stdout or ():
                yield json.loads(line)
            if any(peer.wait() for peer in peers):
                raise BenchError("a peer failed; its output is above")
        finally:
            for peer in peers:
                peer.kill()
                peer.wait()


@contextlib.contextmanager
def _warnings_only() -> Iterator[None]:
    """Has the library here log no more than warnings, unless PCCL_LOG_LEVEL names a level."""
    _C.pccl_ext_log_prefer(LEVELS.index(logging.WARNING))
    try:
        yield
    finally:
        _C.pccl_ext_log_prefer(LEVELS.index(NOTICE))


def _spawn(plan: Plan, address: str, rank: int, folder: str) -> subprocess.Popen[str]:
    task = json.dumps({"plan": asdict(plan), "address": address, "rank": rank, "folder": folder})
    output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
    environment = {"PCCL_LOG_LEVEL": "WARN", **os.environ}
    dies = functools.partial(die_with_parent, os.getpid())
    return subprocess.Popen(python(PEER, task), stdout=output, text=True, env=environment, preexec_fn=dies)


def take_part(plan: Plan, address: str, rank: int = 0, folder: str = "", **access: Any) -> Iterator[Row]:
    """Is one of `plan.world` peers of the run at `address`, all of which follow the same plan; gives a row per size.

    `access`: keys, or a certificate, its private key and the authorities, and `insecure`, as `Communicator` takes them.
    """
    with pccl.Communicator(address, 0, plan.lanes, **access) as comm:
        comm.connect()
        try:
            comm.wait_for_peers(plan.world, timeout=FORM_SECONDS)
        except pccl.PCCLTimeoutError:
            raise BenchError(f"fewer than {plan.world} peers connected within {FORM_SECONDS:.0f} s") from None
        about = {"cpu": _processor(), "peers_run": _placement()}
        gloo = _join_gloo(plan, rank, folder) if plan.gloo else None
        for size in plan.sizes:
            yield _measure(comm, plan, size, gloo) | about
        comm.update_topology()  # a barrier: nobody leaves while another is still in the last op


def _join_gloo(plan: Plan, rank: int, folder: str) -> Callable[[Any], object]:
    distributed = importlib.import_module("torch.distributed")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=plan.world)
    return lambda tensor: distributed.all_reduce(tensor)


def _measure(comm: pccl.Communicator, plan: Plan, size: int, gloo: Callable[[Any], object] | None) -> Row:
    load = os.getloadavg()[0]
    send = _ones(plan, size)
    recv = send if plan.in_place else _ones(plan, size)
    other = _ones(plan, size) if gloo else None
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(WARM_UPS + plan.iterations):
        ours.append(_seconds(lambda: comm.all_reduce(send, recv, op=pccl.ReduceOp.SUM)))
        if gloo:
            theirs.append(_seconds(lambda: gloo(other)))
    row: Row = {"bytes": size, "world": plan.world, "lanes": plan.lanes, "dtype": plan.dtype, "in_place": plan.in_place}
    row["load"] = load
    row |= _figures("pccl", size, ours[WARM_UPS:])
    if gloo:
        row |= _figures("gloo", size, theirs[WARM_UPS:])
        row["ratio"] = row["gloo_ms"] / row["pccl_ms"]
    return row


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _figures(name: str, size: int, seconds: list[float]) -> Row:
    median = statistics.median(seconds)
    return {f"{name}_ms": median * 1e3, f"{name}_min_ms": min(seconds) * 1e3, f"{name}_gb_per_s": size / median / 1e9}


def _ones(plan: Plan, size: int) -> Any:
    """A tensor of ones, whose pages have been touched: torch's where gloo takes it too, else numpy's, which loads faster."""
    kind = _kind(plan)
    count = size // kind.itemsize
    for module in ("torch", "numpy") if plan.gloo else ("numpy", "torch"):
        try:
            dtype = kind.to_torch_dtype() if module == "torch" else kind.to_numpy_dtype()
            return importlib.import_module(module).ones(count, dtype=dtype)
        except (ImportError, AssertionError):  # not installed, or numpy has no bfloat16
            continue
    needed = "torch" if plan.dtype == "bfloat16" else "numpy"
    raise BenchError(f"pccl bench of {plan.dtype} needs {needed}, which is not installed: pip install {needed}")


def _kind(plan: Plan) -> pccl.DataType:
    return pccl.DataType[{"float32": "FLOAT", "float64": "DOUBLE"}.get(plan.dtype, plan.dtype.upper())]


def table(plan: Plan, rows: list[Row]) -> Table:
    """The rows for people to read."""
    lanes = plan.lanes or "default"
    made = Table(title=f"all-reduce, {plan.dtype}, {plan.world} peers, lanes: {lanes}, median of {plan.iterations}")
    for heading in ("size", "pccl ms", "pccl GB/s", *(("gloo ms", "gloo GB/s", "x gloo") if plan.gloo else ())):
        made.add_column(heading, justify="right")
    for row in rows:
        cells = [_readable(row["bytes"]), f"{row['pccl_ms']:.3f}", f"{row['pccl_gb_per_s']:.2f}"]
        if plan.gloo:
            cells += [f"{row['gloo_ms']:.3f}", f"{row['gloo_gb_per_s']:.2f}", f"{row['ratio']:.2f}"]
        made.add_row(*cells)
    if rows:
        last = rows[-1]
        loads = f"load {min(row['load'] for row in rows):.1f} to {max(row['load'] for row in rows):.1f}"
        made.caption = f"{last['cpu']}, peers run: {last['peers_run']}, {loads}"
    return made


def _readable(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def _place(plan: Plan, rank: int) -> None:
    if plan.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if plan.realtime:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            raise BenchError("--realtime needs root or CAP_SYS_NICE") from None


def _placement() -> str:
    words = ["one core"] if len(os.sched_getaffinity(0)) == 1 else []
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        words.append("real-time")
    return ", ".join(words) or "unpinned"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def run_peer() -> None:
    """A peer that `run_here` started: prints its rows as JSON lines."""
    given = json.loads(sys.argv[1])
    plan = Plan(**given["plan"])
    try:
        _place(plan, given["rank"])
        for row in take_part(plan, given["address"], given["rank"], given["folder"]):
            print(json.dumps(row), flush=True)
    except KeyboardInterrupt:
        sys.exit(130)  # `pccl bench` speaks for all
    except (BenchError, pccl.PCCLError, MemoryError) as error:  # another peer may have been interrupted first
        sys.exit(f"pccl bench: {error}")


# ---- the command ----

SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_sizes(text: str) -> list[int]:
    """A list of sizes in bytes, from 4096,64K,16MiB."""
    return [_read_size(part.strip()) for part in text.split(",")]


def _read_size(text: str) -> int:
    number = text.rstrip("KMGiBkmgb")
    unit = text[len(number) :].upper().removesuffix("B").removesuffix("I")
    if not number.isdecimal() or int(number) == 0 or unit not in SIZE_UNITS:
        raise click.BadParameter(f"{text!r} is not a size; write 4096, 4K, 16M or 1G")
    return int(number) * SIZE_UNITS[unit]


@click.group("bench")
def command() -> None:
    """Time the all-reduce."""


@command.command(short_help="Time the all-reduce, next to torch's gloo.")
@click.option(
    "--sizes", type=read_sizes, default="4K,64K,1M,16M,64M", show_default=True, metavar="SIZES", help="bytes per tensor"
)
@click.option("--world", type=click.IntRange(2, 64), default=2, show_default=True, help="number of peers")
@click.option(
    "--lanes",
    type=click.IntRange(0, 256),
    default=0,
    show_default="the library's",
    help="connections to each neighbour of the ring",
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--iterations", type=click.IntRange(1), default=15, show_default=True, help="timed operations of each size")
@click.option("--in-place", is_flag=True, help="reduce into the send buffer")
@click.option("--gloo/--no-gloo", default=None, help="compare with torch's gloo  [default: where torch is installed]")
@click.option("--pin", is_flag=True, help="pin each peer to one core")
@click.option("--realtime", is_flag=True, help="run peers at real-time priority (needs root)")
@click.option("--master", "address", metavar="HOST:PORT", help="join the run at this master as one of --world peers")
@top.access_options("with --master: ")
@click.option("--json", "as_json", is_flag=True, help="print JSON, one line per size")
def allreduce(
    gloo: bool | None,
    address: str | None,
    access: top.Access,
    as_json: bool,
    **measured: Any,
) -> None:
    """Time the all-reduce. Each row is the median over the timed operations, in which gloo and pccl alternate.

    Without --master the command starts a master and all peers on this machine, which use the keys that PCCL_KEYS names, if any.
    """
    if address is None and any(access):
        raise click.UsageError("--keys, --cert, --key, --ca and --insecure need --master; omit them, or set PCCL_KEYS")
    with_gloo = gloo if gloo is not None else address is None and importlib.util.find_spec("torch") is not None
    if with_gloo and address is not None:
        raise click.UsageError("gloo can be compared only between peers that this command starts; omit --master or --gloo")
    if address is not None and any(measured[option] for option in ("pin", "realtime")):
        raise click.UsageError("--pin and --realtime are for peers that this command starts; omit them or --master")
    if address is not None:
        top.Masters(address, access)  # refuses what is no address, and files that contradict each other
    plan = Plan(gloo=with_gloo, **measured)
    for size in plan.sizes:
        if size % _kind(plan).itemsize:
            raise click.UsageError(f"--sizes: {size} B is no whole number of elements of {plan.dtype}")
    try:
        if importlib.util.find_spec("torch") is None:
            _ones(plan, 0)  # a package that is missing ends the command here
        rows = take_part(plan, address, **access._asdict()) if address else run_here(plan)
        if as_json:
            for row in rows:
                click.echo(json.dumps(row))
            return
        console = Console()
        with console.status("measuring"):
            shown = table(plan, list(rows))
        console.print(shown)
    except pccl.UsageError as error:  # the keys: they cannot be used, or are missing
        raise click.UsageError(error.detail) from None
    except (BenchError, pccl.ConnectError) as error:
        raise click.ClickException(str(error)) from None
