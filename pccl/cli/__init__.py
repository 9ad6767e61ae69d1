"""The `pccl` command. Each command is imported when it is run, so that none needs the packages of another one."""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import sys
from typing import Any, NamedTuple

import click

import pccl
from pccl_command import INTERRUPTED


class Command(NamedTuple):
    """Where a command is, and what `pccl --help` says of it."""

    place: str  # module:attribute
    summary: str
    extra: str = ""  # of the package, which installs what the command needs


COMMANDS = {
    "bench": Command("pccl.cli.bench:command", "Time the all-reduce."),
    "demo": Command("pccl.demo:command", "Train a small model, kill a peer, add a peer.", "pccl[demo]"),
    "doctor": Command("pccl.cli.doctor:command", "Find what on this machine stops pccl or slows it down."),
    "drain": Command("pccl.cli.remove:drain", "Let a member leave a run between two steps."),
    "dump": Command("pccl.cli.dump:command", "Show the last operations of members, and who did not enter one."),
    "expel": Command("pccl.cli.remove:expel", "Take a member out of a run at once."),
    "info": Command("pccl.cli.info:command", "Show the build, the settings, and the links of a run."),
    "keys": Command("pccl.cli.keys:command", "Make the keys that encrypt a run."),
    "launch": Command("pccl.cli.launch:command", "Start a master and several copies of a program."),
    "master": Command("pccl.cli.master:command", "Run a master, or a standby."),
    "relay": Command("pccl.cli.relay:command", "Join peers that cannot dial each other."),
    "replay": Command("pccl.cli.web:replay", "Show the recorded history of a run in a browser."),
    "sim": Command("pccl.cli.sim:command", "Simulate the protocol under faults (checkout only)."),
    "stacks": Command("pccl.cli.remove:stacks", "Show where the program of a member stands."),
    "stress": Command("pccl.stress.program:command", "Test a program under faults.", "pccl[stress]"),
    "top": Command("pccl.cli.top:command", "Show what slows a run down, live."),
    "web": Command("pccl.cli.web:command", "Show a run in a browser, with history and metrics.", "pccl[web]"),
}


def _missing(name: str, error: ModuleNotFoundError) -> Exception:
    """Returns the UsageError, with status 2, for a package that a command needs; `error` itself if it is ours that is missing."""
    module = (error.name or "").partition(".")[0]
    if module in ("", "pccl") or name not in COMMANDS:
        return error
    extra = COMMANDS[name].extra or module
    return click.UsageError(f"pccl {name} needs {module}, which is not installed: pip install '{extra}'")


class Commands(click.Group):
    """The commands of COMMANDS. Ctrl-C ends them with one line and status 130, output that no longer fits with one line and 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command. UsageError, with status 2: a package that it needs is not installed."""
        wanted = COMMANDS.get(cmd_name)
        if wanted is None:
            return None
        module, _, attribute = wanted.place.partition(":")
        try:
            found: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise _missing(cmd_name, error) from None
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that the first argument names. UsageError: there is none; a similar one is named."""
        similar = difflib.get_close_matches(args[0], COMMANDS, 1)
        if args[0] not in COMMANDS and similar and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {args[0]!r}; did you mean {similar[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command as click does, and ends it in one line after Ctrl-C."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except ModuleNotFoundError as error:
            raise _missing(ctx.invoked_subcommand or "", error) from None
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        return result

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Ends the command in one line if the output has no room, also that of --help."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # the caller has closed it
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        try:
            return super().main(*arguments, **settings)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            with contextlib.suppress(OSError):
                sys.stdout.close()  # or the interpreter tries to write the rest when it ends
            click.echo(f"Error: cannot write the output: {error.strerror}", err=True)
            sys.exit(1)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pccl.__version__, prog_name="pccl")
def main() -> None:
    """Collective communication between peers that may join, die or hang at any time."""
