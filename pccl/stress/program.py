"""The command line of `pccl stress`. Without --program it is that of the test of pccl itself, in bench/stress of a checkout."""

from __future__ import annotations

import errno
import importlib
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from pccl._core.errors import PCCLError
from pccl._host.files import open_log
from pccl.lab.folder import alone_in, find_file, make_writable
from pccl.lab.ranges import Range
from pccl.stress.plan import FAULTS, read_faults

PROGRESS = r"(?i)\bstep[ =:#]*(\d+)"
STATE = r"(?i)\bstate[ =:]+(\S+)"
RESULTS = ("summary.json", "copy-*.log", "events.jsonl")
"""Files of a run that another one would overwrite."""


class StressCommand(click.Command):
    """Takes the command line of the test of pccl itself where --program is missing."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the arguments."""
        own = any(word == "--program" or word.startswith("--program=") for word in args)
        if own or {"-h", "--help"}.intersection(args):
            return super().make_context(info_name, args, parent, **extra)
        return _test_of_pccl().make_context(info_name, args, parent, **extra)


def _test_of_pccl() -> click.Command:
    """Returns the command that tests pccl itself. UsageError: the current folder is in no checkout, or in another one."""
    root = Path(__file__).resolve().parents[2]
    bench = root / "bench"
    if not (bench / "stress" / "command.py").is_file() or not Path.cwd().is_relative_to(root):
        raise click.UsageError(
            "--program is missing; name the program to test, as --program 'python train.py'; "
            "the test of pccl itself runs only in a checkout (bench/stress/README.md)"
        )
    sys.path.append(str(bench))
    command: click.Command = importlib.import_module("stress.command").stress
    return command


def _pattern(context: click.Context, parameter: click.Parameter, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from None


def _faults(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    try:
        return read_faults(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _command(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None
    if not words:
        raise click.BadParameter("the command is empty")
    if words[0] in ("python", "python3"):
        words[0] = sys.executable
    elif words[0].endswith(".py"):
        words.insert(0, sys.executable)
    if shutil.which(words[0]) is None:
        raise click.BadParameter(f"{words[0]} is not an executable program")
    return tuple(words)


@click.command(
    "stress",
    cls=StressCommand,
    short_help="Test a program under faults.",
    epilog="Exit status: 0 the program held, 1 it did not, 2 bad arguments, 130 Ctrl-C.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--program",
    "command",
    callback=_command,
    metavar="COMMAND",
    help='command to run, such as "python train.py"  [required outside a checkout]',
)
@click.option("--members", type=click.IntRange(2, 64), default=3, show_default=True, help="number of copies")
@click.option("--seconds", type=Range(1, 86400), default=30.0, show_default=True, help="how long faults are injected")
@click.option(
    "--faults",
    "kinds",
    callback=_faults,
    default=",".join(FAULTS),
    show_default=True,
    metavar="KIND,...",
    help="kill: SIGKILL; stop: SIGSTOP and SIGCONT; restart: start a replacement; cut: reset, stall or drop connections",
)
@click.option("--every", type=Range(0.1), default=4.0, show_default=True, help="mean seconds between faults")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="the same seed gives the same faults")
@click.option("--patience", type=Range(1), default=30.0, show_default=True, help="seconds that a copy may make no progress")
@click.option(
    "--progress",
    callback=_pattern,
    default=PROGRESS,
    show_default=True,
    metavar="REGEX",
    help="matches a line of progress; group 1: the step",
)
@click.option(
    "--state",
    callback=_pattern,
    default=STATE,
    show_default=True,
    metavar="REGEX",
    help="matches a line with a state hash; group 1: the hash",
)
@click.option(
    "--heartbeat-limit", type=Range(0.5, 60), default=5.0, show_default=True, help="heartbeat limit of the master, in seconds"
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="stress-out",
    show_default=True,
    help="folder for logs and summary",
)
def command(**given: Any) -> None:
    """Start copies of a program, inject faults, and judge by what the copies print whether the program survives.

    The program survives if each copy that was neither killed nor cut off for long exits with 0, all copies make progress after
    each fault, copies print the same state hash for the same step, and none ends before the first fault. Each copy gets
    the environment of `pccl launch` (PCCL_MASTER, PCCL_PEER, PCCL_PEERS) and of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, ...). A
    replacement has PCCL_JOIN=1.

    Without --program, in a checkout, the command tests pccl itself (bench/stress/README.md).

    Example: pccl stress --program "python train.py --steps 500" --members 4 --seconds 60
    """
    from pccl.stress.run import Options, ProgramError, Run, write_summary

    options = Options(**given)
    _prepare(options.out)
    try:
        with alone_in(options.out):
            run = Run(options, click.echo)
            run.perform()
            summary = run.summary()
            write_summary(summary, options.out)
    except ProgramError as error:
        raise click.UsageError(f"--program: {error}") from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # of the standard output
            raise
        raise click.UsageError(f"the test was cut short: cannot write to {options.out}: {error.strerror}") from None
    except PCCLError as error:
        raise click.ClickException(error.detail) from None
    _print(summary, options.out)
    if run.interrupted is not None:
        sys.exit(128 + run.interrupted)
    sys.exit(0 if summary["passed"] else 1)


def _prepare(out: Path) -> None:
    try:
        make_writable(out)
        os.close(open_log(out / "copy-0.log"))
    except OSError as error:
        raise click.UsageError(f"cannot write to {error.filename or out}: {error.strerror}") from None
    if found := find_file(out, *RESULTS):
        raise click.UsageError(f"{out} has results of another run, such as {found.name}; name another folder with --out")


def _print(summary: dict[str, Any], out: Path) -> None:
    click.echo()
    for check in summary["checks"]:
        begin = "FAILED" if not check["holds"] else "ok    " if check["judged"] else "note   not judged:"
        click.echo(f"{begin} {check['claim']}: {check['detail']}")
    for note in summary["notes"]:
        click.echo(f"note   {note}")
    click.echo(f"logs and summary.json are in {out}")
    click.echo(
        f"INTERRUPTED by {summary['interrupted']}" if summary["interrupted"] else "PASSED" if summary["passed"] else "FAILED"
    )
