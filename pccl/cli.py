"""The `pccl` command."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys

import click
from rich.console import Console
from rich.table import Table

import pccl
from pccl import _bench
from pccl._loader import load_native_module
from pccl.master import DEFAULT_ADDRESS, serve
from pccl.stress.command import stress

_ffi, _C = load_native_module()

SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_sizes(text: str) -> list[int]:
    """A list of sizes in bytes, from 4096,64K,16MiB."""
    return [_read_size(part.strip()) for part in text.split(",")]


def _read_size(text: str) -> int:
    number = text.rstrip("KMGiBkmgb")
    unit = text[len(number) :].upper().removesuffix("B").removesuffix("I")
    if not number.isdecimal() or unit not in SIZE_UNITS:
        raise click.BadParameter(f"{text!r} is not a size: write 4096, 4K, 16M or 1G")
    return int(number) * SIZE_UNITS[unit]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pccl.__version__, prog_name="pccl")
def main() -> None:
    """Collective communication between peers that may join, die or hang at any time."""


@main.command()
@click.option("--listen", default=DEFAULT_ADDRESS, show_default=True, help="host:port to listen on; port 0 = any free port")
@click.option("--heartbeat-limit", type=click.FloatRange(0.1, 3600), help="seconds after which a silent peer counts as lost")
def master(listen: str, heartbeat_limit: float | None) -> None:
    """Run the master of a run, until SIGINT or SIGTERM."""
    sys.exit(serve(listen, heartbeat_limit))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def info(as_json: bool) -> None:
    """Show the build, the instruction set in use, and what else is installed."""
    facts = _facts()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, "not installed" if value is None else str(value))
    Console().print(table)


def _facts() -> dict[str, object]:
    level = _ffi.new("char const **")
    _C.pccl_ext_cpu_level(level)
    return {
        "version": pccl.__version__,
        "library": importlib.import_module("pccl._native").__file__,
        "instruction set": _ffi.string(level[0]).decode(),
        "processors": len(os.sched_getaffinity(0)),
        "CUDA tensors": pccl.cuda.is_available(),
        "default port": _C.CCOIP_PROTOCOL_PORT_MASTER,
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy")},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@main.group()
def bench() -> None:
    """Measure this machine, or a run."""


@bench.command()
@click.option(
    "--sizes", type=read_sizes, default="4K,64K,1M,16M,64M", show_default=True, metavar="SIZES", help="bytes per tensor"
)
@click.option("--world", type=click.IntRange(2, 64), default=2, show_default=True, help="number of peers")
@click.option(
    "--lanes", type=click.IntRange(0, 256), default=0, show_default="the library's", help="connections to each neighbour"
)
@click.option("--dtype", type=click.Choice(_bench.DTYPES), default="float32", show_default=True)
@click.option("--iterations", type=click.IntRange(1), default=15, show_default=True, help="timed ops of each size")
@click.option("--in-place", is_flag=True, help="reduce into the send buffer")
@click.option("--gloo/--no-gloo", default=None, help="compare with torch's gloo  [default: where torch is installed]")
@click.option("--master", "address", metavar="HOST:PORT", help="take part in the run of this master, as one of --world peers")
@click.option("--json", "as_json", is_flag=True, help="print JSON, one line per size")
def allreduce(
    sizes: list[int],
    world: int,
    lanes: int,
    dtype: str,
    iterations: int,
    in_place: bool,
    gloo: bool | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Time the all-reduce; each row is the median over the timed ops, in which gloo and pccl alternate.

    Without --master it starts a master and all peers on this machine.
    """
    with_gloo = gloo if gloo is not None else address is None and _version("torch") is not None
    if with_gloo and address is not None:
        raise click.UsageError("gloo can be compared only between peers that this command starts: leave --master or --gloo out")
    plan = _bench.Plan(
        sizes=sizes, world=world, lanes=lanes, dtype=dtype, iterations=iterations, in_place=in_place, gloo=with_gloo
    )
    try:
        rows = _bench.take_part(plan, address) if address else _bench.run_here(plan)
        if as_json:
            for row in rows:
                click.echo(json.dumps(row))
            return
        console = Console()
        with console.status("measuring"):
            table = _bench.table(plan, list(rows))
        console.print(table)
    except _bench.BenchError as error:
        raise click.ClickException(str(error)) from None


@main.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Train a small model on real text with three peers, and kill one of them."""
    try:
        run_demo = importlib.import_module("pccl.demo").run_demo
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the demo needs {error.name}: pip install 'pccl[demo]'") from None
    sys.exit(run_demo(list(arguments)))


main.add_command(stress)


if __name__ == "__main__":
    main()
