"""`pccl sim`. The simulator is in `sim/` of a checkout: it is a tool for the developers of pccl, and the package lacks it.

This module replaces itself by `sim/command.py` of the checkout that the package is imported from. Elsewhere `--help` alone works.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

_CHECKOUT = Path(__file__).resolve().parents[2]
_SOURCE = _CHECKOUT / "sim" / "command.py"


def _unavailable(why: str) -> click.Command:
    """Returns a command that says why it cannot run: in its help, and else as its error, with status 2."""

    @click.command("sim", help=f"Simulate the protocol under faults. {why}", context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def refuse(context: click.Context, arguments: tuple[str, ...]) -> None:
        click.echo(f"Error: {why}", err=True)
        context.exit(2)

    return refuse


if _SOURCE.is_file() and (_CHECKOUT / "csrc").is_dir():
    _spec = importlib.util.spec_from_file_location(__name__, _SOURCE)
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[__name__] = _module
    try:
        _spec.loader.exec_module(_module)
    except click.UsageError as error:
        _module.command = _unavailable(error.message)  # type: ignore[attr-defined]
else:
    command = _unavailable(
        "pccl sim needs a checkout of pccl, because the package lacks the simulator: "
        "clone the repository, run `make build` there, and then `.venv/bin/pccl sim`"
    )
