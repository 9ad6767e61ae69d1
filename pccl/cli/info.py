"""`pccl info`: the build, this machine, and the links of a run."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform

import click
from rich.table import Table
from rich.text import Text

import pccl
from pccl._core.library import _C, _ffi
from pccl.cli import links, top


@click.command("info", short_help="Show the build, the settings, and the links of a run.")
@click.option(
    "--master", "address", metavar=top.MASTERS, help="also show the links of the run at this master, or list of masters"
)
@top.access_options("with --master: ")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def command(address: str | None, access: top.Access, as_json: bool) -> None:
    """Show the build, the instruction set in use, the settings, and what else is installed.

    With --master it also shows the links between the members of a run (docs/diagnosis.md#links). Exit status: 1 if no master
    answers; the rest is shown all the same.
    """
    facts = _facts()
    facts_of_json = {**facts, "environment": {name: os.environ.get(name) for name in environment()}}
    masters = None if address is None else top.Masters(address, access)
    if as_json:
        try:
            if masters is not None:
                facts_of_json["links"] = links.plain(masters.ask_once())
        finally:
            click.echo(json.dumps(facts_of_json, indent=2))
        return
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, "not installed" if value is None else str(value))
    console = top.standard_output()
    console.print(table)
    variables = Table("variable", "value", "meaning", box=None, title="Environment", title_justify="left")
    for name, meaning in environment().items():
        variables.add_row(name, os.environ.get(name, "-"), meaning)
    console.print(variables)
    if masters is not None:
        told = masters.ask_once()
        console.print(links.render(told, masters.no_run))
        if top.has_members(told):
            console.print(Text(f"{top.RUNS}{masters.runs() or 'none is told'}"))


def environment() -> dict[str, str]:
    """Returns the meaning of each environment variable that pccl reads, by its name."""
    meaning, found = _ffi.new("char const **"), {}
    index = 0
    while (name := _C.pccl_ext_environment(index, meaning)) != _ffi.NULL:
        found[_ffi.string(name).decode()] = _ffi.string(meaning[0]).decode()
        index += 1
    return found


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
        "encryption": "yes" if _C.pccl_ext_has_tls() else f"no: {TLS_MISSING}",
        "default port": _C.CCOIP_PROTOCOL_PORT_MASTER,
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("torch", "numpy")},
    }


TLS_MISSING = (
    "keys cannot be used. To have it, install libssl-dev (Debian), openssl-devel (Fedora) or openssl (Arch), version 3, "
    "and build again"
)


def _cuda_kernels() -> str:
    in_library = pccl.cuda.why_no_kernels(load=False)
    if in_library or pccl.cuda.device_count() == 0:
        return f"no: {in_library}" if in_library else "in the library"
    refused = pccl.cuda.why_no_kernels(load=True)
    return f"in the library, but the GPU refuses them: {refused}" if refused else "yes"


def lz4_missing() -> str:
    """What a build without LZ4 lacks, and how to have it; "" for a build with it."""
    if _C.pccl_ext_has_lz4():
        return ""
    return (
        "no: shared state travels unpacked over slow links. "
        "To have it, install liblz4-dev (Debian), lz4-devel (Fedora) or lz4 (Arch) and build again"
    )


def version_of(name: str) -> str | None:
    """Returns the version of a package; None: it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
