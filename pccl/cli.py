"""The `pccl` command."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import pccl
from pccl import _bench, _sim
from pccl._loader import load_native_module
from pccl.master import DEFAULT_ADDRESS, SIGTERM_CHOICES, serve
from pccl.stress.command import stress

_ffi, _C = load_native_module()

FAULTS_HELP = f"comma-separated, from {', '.join(_sim.FAULTS)}; or all  [default: chosen by the seed]"

INTERRUPTED = 130
"""The exit status after Ctrl-C, as that of a shell."""

SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_sizes(text: str) -> list[int]:
    """A list of sizes in bytes, from 4096,64K,16MiB."""
    return [_read_size(part.strip()) for part in text.split(",")]


def _read_size(text: str) -> int:
    number = text.rstrip("KMGiBkmgb")
    unit = text[len(number) :].upper().removesuffix("B").removesuffix("I")
    if not number.isdecimal() or int(number) == 0 or unit not in SIZE_UNITS:
        raise click.BadParameter(f"{text!r} is not a size: write 4096, 4K, 16M or 1G")
    return int(number) * SIZE_UNITS[unit]


class Interruptible(click.Group):
    """Ctrl-C ends its commands with status 130 and one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, but for Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=Interruptible, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pccl.__version__, prog_name="pccl")
def main() -> None:
    """Collective communication between peers that may join, die or hang at any time."""


@main.command(short_help="Run a master, or a standby.")
@click.option("--listen", default=DEFAULT_ADDRESS, show_default=True, help="host:port to listen on; port 0 = any free port")
@click.option(
    "--heartbeat-limit",
    type=click.FloatRange(0.1, 3600),
    show_default="PCCL_HEARTBEAT_LIMIT_MS, or 5",
    help="seconds without a heartbeat after which a peer is declared dead",
)
@click.option("--masters", help="all masters of the run, this one among them: host:port,host:port; the first begins new runs")
@click.option(
    "--on-sigterm",
    type=click.Choice(SIGTERM_CHOICES),
    show_default="PCCL_MASTER_ON_SIGTERM, or detach",
    help="detach: peers look for another master, or wait for this one to come back; end: the run ends",
)
def master(listen: str, heartbeat_limit: float | None, masters: str | None, on_sigterm: str | None) -> None:
    """Run a master, or a standby, until Ctrl-C, which ends the run, or SIGTERM."""
    sys.exit(serve(listen, heartbeat_limit, masters, on_sigterm))


@main.command(short_help="Show the build and the instruction set in use.")
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
        "LZ4": lz4_missing() or "yes",
        "default port": _C.CCOIP_PROTOCOL_PORT_MASTER,
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy")},
    }


def lz4_missing() -> str:
    """What a build without LZ4 lacks, and how to have it; "" for a build with it."""
    if _C.pccl_ext_has_lz4():
        return ""
    return (
        "no: shared state travels unpacked over slow links. "
        "To have it, install liblz4-dev (Debian), lz4-devel (Fedora) or lz4 (Arch) and build again"
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@main.group()
def bench() -> None:
    """Measure this machine, or a run."""


@bench.command(short_help="Time the all-reduce, beside torch's gloo.")
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
@click.option("--tcp", is_flag=True, help="compare with bare TCP, with the congestion control that pccl has within a host")
@click.option("--pin", is_flag=True, help="each peer on one core, in turn")
@click.option("--realtime", is_flag=True, help="peers at real-time priority (needs root)")
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
    tcp: bool,
    pin: bool,
    realtime: bool,
    address: str | None,
    as_json: bool,
) -> None:
    """Time the all-reduce; each row is the median over the timed ops, in which gloo and pccl alternate.

    Without --master it starts a master and all peers on this machine.
    """
    with_gloo = gloo if gloo is not None else address is None and _version("torch") is not None
    if with_gloo and address is not None:
        raise click.UsageError("gloo can be compared only between peers that this command starts: leave --master or --gloo out")
    if address is not None and (tcp or pin or realtime):
        raise click.UsageError("--tcp, --pin and --realtime are for peers that this command starts: leave --master or them out")
    plan = _bench.Plan(
        sizes=sizes,
        world=world,
        lanes=lanes,
        dtype=dtype,
        iterations=iterations,
        in_place=in_place,
        gloo=with_gloo,
        tcp=tcp,
        pin=pin,
        realtime=realtime,
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


def read_faults(text: str) -> int:
    """Bits of what may go wrong, from names: crash,stall; or all."""
    names = list(_sim.FAULTS) if text == "all" else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in _sim.FAULTS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is no fault: choose from {', '.join(_sim.FAULTS)}, or write all")
    return sum(_sim.FAULTS[name] for name in set(names))


@main.command(short_help="Simulate the protocol under faults.")
@click.option("--seed", type=click.IntRange(0, 2**63), default=1, show_default=True, help="the first seed")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="number of seeds, counting up from --seed")
@click.option(
    "--peers",
    type=click.IntRange(2, 1000),
    help="peers at a time; above 16: takeovers alone  [default: 2 to 8, chosen by the seed]",
)
@click.option("--masters", type=click.IntRange(1, 3), help="the first master and its standbys  [default: chosen by the seed]")
@click.option(
    "--minutes",
    type=click.FloatRange(0.001, 10000),
    help="simulated minutes with faults per seed  [default: 0.005 to 0.02, chosen by the seed]",
)
@click.option("--faults", type=read_faults, metavar="NAMES", help=FAULTS_HELP)
@click.option("--trace", is_flag=True, help="print who says what to whom, and when")
@click.option(
    "--lines", type=click.IntRange(1, 100000), default=60, show_default=True, help="lines of trace to print of a failing seed"
)
@click.option("--jobs", type=click.IntRange(1, 256), default=_sim.default_jobs, help="seeds at a time  [default: the processors]")
@click.option("--failures", type=click.IntRange(1), default=3, show_default=True, help="stop after so many failing seeds")
def sim(
    seed: int,
    seeds: int,
    peers: int | None,
    masters: int | None,
    minutes: float | None,
    faults: int | None,
    trace: bool,
    lines: int,
    jobs: int,
    failures: int,
) -> None:
    """Run the protocol in virtual time against faults drawn from a seed, and check it after every event.

    The same seed and options give the same run. The exit status is 0 when all seeds pass, 1 when one fails, 2 when it could
    not run, and 130 after Ctrl-C.
    """
    if trace and seeds > 1:
        raise click.UsageError("--trace is for one seed")
    plan = _sim.Plan(
        first=seed,
        seeds=seeds,
        peers=peers or 0,
        masters=masters or 0,
        fault_ms=round((minutes or 0) * 60000),
        faults=faults or 0,
        lines=lines,
        trace=trace,
        jobs=min(jobs, seeds),
        failures=failures,
    )
    sys.exit(_simulate(plan))


def _simulate(plan: _sim.Plan) -> int:
    console = Console(stderr=True, highlight=False)
    began = time.monotonic()
    interrupted = False
    told = 0.0  # when the next line is due where nobody watches
    with _sim.Runner(plan) as runner:
        progress = runner.progress
        try:
            with console.status("simulating") as status:
                while not runner.wait(0.1):
                    seconds = max(time.monotonic() - began, 0.001)
                    line = (
                        f"{progress.done} of {plan.seeds} seeds, {progress.done / seconds:.0f} a second, "
                        f"{progress.events / 1e6:.1f} million events, {len(progress.reports)} failed"
                    )
                    status.update(line)
                    if not console.is_terminal and seconds >= told:
                        click.echo(line, err=True)
                        told += 10
        except KeyboardInterrupt:
            interrupted = True
    seconds = time.monotonic() - began
    for report in progress.reports:
        click.echo(report)
    for error in progress.errors:
        click.echo(error, err=True)
    happened = ", ".join(f"{count} {name}" for name, count in progress.counts.items() if count)
    rate = progress.done / max(seconds, 0.001)
    click.echo(f"{happened}", err=plan.trace)
    failed = f"{len(progress.reports)} failed" if progress.reports else "all passed"
    click.echo(
        f"{'interrupted after ' if interrupted else ''}{progress.done} seeds from {plan.first} in {seconds:.1f} s "
        f"({rate:.0f} a second, {plan.jobs} at a time): {failed}",
        err=plan.trace,
    )
    if interrupted:
        return INTERRUPTED
    if progress.errors:
        return 2
    return 1 if progress.reports else 0


@main.command(
    short_help="Train a small model, kill a peer, add one.",
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
