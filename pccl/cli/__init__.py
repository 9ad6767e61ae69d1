"""The `pccl` command."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from typing import Any

import click
from rich.table import Table

import pccl
from pccl._loader import load_native_module
from pccl.cli import bench, launch, links, sim, top
from pccl.lab.ranges import Range
from pccl.master import DEFAULT_ADDRESS, SIGTERM_CHOICES, serve, serve_in_background
from pccl.stress.command import stress

_ffi, _C = load_native_module()


class Interruptible(click.Group):
    """Ctrl-C, and output that no longer fits, end its commands with one line; the status of the former is 130."""

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, but for these two."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(sim.INTERRUPTED)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            with contextlib.suppress(OSError):
                sys.stdout.close()  # or the interpreter tries to write the rest when it ends
            raise click.ClickException(f"the output cannot be written: {error.strerror}") from None
        return result


@click.group(cls=Interruptible, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pccl.__version__, prog_name="pccl")
def main() -> None:
    """Collective communication between peers that may join, die or hang at any time."""


@main.command(short_help="Run a master, or a standby.")
@click.option("--listen", default=DEFAULT_ADDRESS, show_default=True, help="host:port to listen on; port 0 = any free port")
@click.option(
    "--heartbeat-limit",
    type=Range(0.1, 3600),
    show_default="PCCL_HEARTBEAT_LIMIT_MS, or 5",
    help="seconds without a heartbeat after which a peer is declared dead",
)
@click.option("--masters", help="all masters of the run, this one among them: host:port,host:port; the first begins new runs")
@click.option("--advertise", help="its entry in --masters, where peers reach it at an address that this machine does not have")
@click.option(
    "--on-sigterm",
    type=click.Choice(SIGTERM_CHOICES),
    show_default="PCCL_MASTER_ON_SIGTERM, or detach",
    help="detach: peers look for another master, or wait for this one to come back; end: the run ends",
)
@click.option(
    "--until-empty",
    type=Range(0.001, 86400),
    metavar="SECONDS",
    help="end once neither this master nor another one of the list has had a peer for so long",
)
@click.option("--background", is_flag=True, help="return once it listens; it goes on in a session of its own")
@click.option("--log", metavar="FILE", help="with --background: where its log goes; left out: nowhere")
def master(
    listen: str,
    heartbeat_limit: float | None,
    masters: str | None,
    advertise: str | None,
    on_sigterm: str | None,
    until_empty: float | None,
    background: bool,
    log: str | None,
) -> None:
    """Run a master, or a standby, until Ctrl-C, which ends the run, or SIGTERM."""
    if log is not None and not background:
        raise click.UsageError("--log goes with --background; otherwise the log goes to standard error")
    options = listen, heartbeat_limit, masters, on_sigterm, advertise, until_empty
    sys.exit(serve_in_background(log, lambda ready: serve(*options, ready)) if background else serve(*options))


@main.command(short_help="Show the build, and the links of a run.")
@click.option("--master", "address", metavar=top.MASTERS, help="show the links of the run of this master, or of a list, too")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def info(address: str | None, as_json: bool) -> None:
    """Show the build, the instruction set in use, and what else is installed.

    With --master also what the members of its run have told of the links between them: docs/diagnosis.md#links. If no master
    answers, the rest is shown all the same, and the status is 1.
    """
    facts = _facts()
    masters = None if address is None else top.Masters(address)
    if as_json:
        try:
            if masters is not None:
                facts["links"] = links.plain(masters.ask_once())
        finally:
            click.echo(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, "not installed" if value is None else str(value))
    console = top.standard_output()
    console.print(table)
    if masters is not None:
        console.print(links.render(masters.ask_once()))


def _facts() -> dict[str, object]:
    level = _ffi.new("char const **")
    _C.pccl_ext_cpu_level(level)
    return {
        "version": pccl.__version__,
        "library": importlib.import_module("pccl._native").__file__,
        "instruction set": _ffi.string(level[0]).decode(),
        "processors": len(os.sched_getaffinity(0)),
        "CUDA tensors": f"{'yes' if pccl.cuda.device_count() > 0 else 'no'}: {pccl.cuda.describe()}",
        "CUDA kernels": _cuda_kernels(),
        "LZ4": lz4_missing() or "yes",
        "default port": _C.CCOIP_PROTOCOL_PORT_MASTER,
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy")},
    }


def _cuda_kernels() -> str:
    in_library = pccl.cuda.why_no_kernels(load=False)
    if in_library or pccl.cuda.device_count() == 0:
        return f"no: {in_library}" if in_library else "in the library"
    refused = pccl.cuda.why_no_kernels(load=True)
    return f"in the library, but the GPU does not take them: {refused}" if refused else "yes"


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


for command in (bench.command, launch.command, sim.command, stress, top.command):
    main.add_command(command)
