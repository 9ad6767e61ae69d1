"""`python -m pccl.distributed.run script.py arguments...`: a script under a supervisor that absorbs its death.

A launcher such as torchrun ends the whole job when one of its processes dies. It does not see the death of a script that runs
under a supervisor: `torchrun -m pccl.distributed.run script.py`, or `supervise()` as the first call of the script itself.
"""

from __future__ import annotations

import os
import sys

import click

from pccl.distributed._supervise import become_supervisor


@click.command(context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
@click.option(
    "--restarts",
    type=click.IntRange(0),
    metavar="N",
    help="restart a killed child up to N times; it joins the others  [default: PCCL_RESTARTS, or 0]",
)
@click.option(
    "--as",
    "replaced",
    metavar="NAME",
    default="",
    help="take the place of the backend NAME, such as gloo: a script or "
    "framework that asks for NAME, or for no backend, gets pccl",
)
@click.option(
    "--adapt",
    "framework",
    type=click.Choice(["torch", "accelerate", "transformers", "deepspeed"]),
    help="let a restarted process of an unmodified script join the others; the script uses this framework",
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a Python module, as in python -m")
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
def main(restarts: int | None, replaced: str, framework: str | None, module: bool, script: tuple[str, ...]) -> None:
    """Run a script under a supervisor, so that the launcher does not end the job if the script is killed.

    If the script is killed and other ranks continue, the exit status is 0. Signals such as SIGINT and SIGTERM go to the script.

    Example: torchrun [options] -m pccl.distributed.run script.py [arguments...]
    """
    if replaced and not replaced.isidentifier():
        raise click.BadParameter(f"{replaced!r} is not a backend", param_hint="--as")
    runner = ["-m", "pccl.distributed._as", replaced or "-", framework or "-"] if replaced or framework else []
    command = [sys.executable, "-u", *runner, *(["-m"] if module else []), *script]
    become_supervisor(command, os.environ.get("PCCL_RESTARTS", "") if restarts is None else str(restarts))


if __name__ == "__main__":
    main(prog_name="python -m pccl.distributed.run")
