"""`pccl drain` and `pccl expel` take a member out of a run; `pccl stacks` shows where its program stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from pccl._core.errors import PCCLError, Result
from pccl._core.names import short
from pccl._watch.reports import MemberReport
from pccl.cli import top


def _command(name: str, short_help: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command about one member, with which an operator asks the masters."""

    def make(function: Callable[..., Any]) -> click.Command:
        function = click.option(
            "--keys", type=click.Path(), metavar="FILE", help="key file of the run's masters [default: PCCL_KEYS]"
        )(function)
        master = top.master_option("master of the run, or all masters")
        return click.command(name, short_help=short_help)(click.argument("member")(master(function)))

    return make


reason_option = click.option("--reason", default="", metavar="TEXT", help="what for; the members' logs and errors tell it")


@_command("drain", "Let a member leave between two steps.")
@reason_option
def drain(member: str, address: str, keys: str | None, reason: str) -> None:
    """Let MEMBER, a name or the beginning of an id, leave the run at its next update, as after `comm.leave()`.

    No operation of the others is aborted. The command needs the keys of the masters, such as run.master.
    """
    _remove(address, member, keys, reason, at_update=True)


@_command("expel", "Take a member out of a run at once.")
@reason_option
def expel(member: str, address: str, keys: str | None, reason: str) -> None:
    """Take MEMBER, a name or the beginning of an id, out of the run at once, as if it had died.

    The command needs the keys of the masters, such as run.master.
    """
    _remove(address, member, keys, reason, at_update=False)


@_command("stacks", "Show where the program of a member stands.")
def stacks(member: str, address: str, keys: str | None) -> None:
    """Show the Python stacks of all threads of MEMBER, a name or the beginning of an id, such as one that hangs.

    A process that is stopped, is blocked in an extension, or has no Python gives none. The command needs the keys of the masters,
    such as run.master.
    """
    masters, found = _look_up(address, member, keys)
    try:
        click.echo(masters.stacks(found.uuid), nl=False)
    except PCCLError as error:
        raise _failure(error) from None


def _look_up(address: str, member: str, keys: str | None) -> tuple[top.Masters, MemberReport]:
    masters = top.Masters(address, top.Access(keys))
    told = masters.ask_once()
    found = find(told.members, member)
    if found is None:
        raise WrongMember(why_not(told.members, member) if top.has_members(told) else masters.no_run())
    return masters, found


class WrongMember(click.ClickException):
    """MEMBER is not one member."""

    exit_code = 2


def why_not(members: Iterable[MemberReport], wanted: str) -> str:
    """Why `find` returns None."""
    if found := _matches(members, wanted):
        ids = ", ".join(short(one.uuid) for one in found)
        return f"{len(found)} members are named {wanted}, or have an id that begins so; give the beginning of an id: {ids}"
    listed = ", ".join(map(_label, members)) or "none is known"
    return f'no member is named "{wanted}", and no id begins so; members: {listed}'


def _label(member: MemberReport) -> str:
    return f"{member.name} ({short(member.uuid)})" if member.name else short(member.uuid)


def _failure(error: PCCLError) -> click.ClickException:
    """Wrong keys are wrong options."""
    return (click.UsageError if error.result == Result.INVALID_ARGUMENT else click.ClickException)(error.detail)


def _remove(address: str, member: str, keys: str | None, reason: str, *, at_update: bool) -> None:
    masters, found = _look_up(address, member, keys)
    try:
        masters.remove(found.uuid, at_update=at_update, reason=reason)
    except PCCLError as error:
        raise _failure(error) from None
    click.echo(f"{_label(found)} leaves at its next update" if at_update else f"{_label(found)} is expelled")


ID_DIGITS = 8
"""As many of an id go before names, which members choose by themselves."""


def find(members: Iterable[MemberReport], wanted: str) -> MemberReport | None:
    """The one with that name, or whose id begins so; None: there is not exactly one."""
    found = _matches(members, wanted)
    return found[0] if len(found) == 1 else None


def _matches(members: Iterable[MemberReport], wanted: str) -> list[MemberReport]:
    everyone = list(members)
    digits = wanted.replace("-", "").lower()
    begin = [one for one in everyone if digits and one.uuid.hex.startswith(digits)]
    if begin and len(digits) >= ID_DIGITS:
        return begin
    return [one for one in everyone if one in begin or (wanted and one.name == wanted)]
