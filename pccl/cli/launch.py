"""`pccl launch`: a master and peers of one program on this machine."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import click
from click.shell_completion import CompletionItem

from pccl._core.address import parse_endpoints
from pccl._core.errors import PCCLError, Result
from pccl._host.processes import Fleet, Output, Process, how_ended
from pccl._host.waits import (
    IN_RUN,
    JOIN_VARIABLE,
    LEFT,
    LEFT_STATUS,
    LEFT_STATUS_VARIABLE,
    NOT_JOINED,
    PATIENCE_VARIABLE,
    PIPE_VARIABLE,
)
from pccl._run.credentials import VARIABLES, environment_has_some
from pccl._run.own_keys import INSECURE_VARIABLE, local_master, why_plain
from pccl.lab.ranges import Range

GRACE_SECONDS = 10.0
"""How long peers that were told to end may take, before they are killed."""

WRITE_BYTES = 1 << 16

ROOM_BYTES = 16 << 20
"""How much output waits for a slow reader of a standard stream, before lines are dropped."""

STALL_SECONDS = 10.0
"""After which output is dropped at the end, if nobody reads any of it."""

RESTARTS = 10
"""Of each peer, where --restart stands without a number."""


class RestartCommand(click.Command):
    """A command whose option --restart may stand without its number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Gives it the number; words behind the program are the program's."""
        flags = {name for option in self.get_params(ctx) if getattr(option, "is_flag", False) for name in option.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            alone = "=" in args[at] or args[at] in flags
            if args[at] == "--restart" and not "".join(args[at + 1 : at + 2]).lstrip("-").isdigit():
                args[at] = f"--restart={RESTARTS}"
                alone = True
            at += 1 if alone else 2
        return super().parse_args(ctx, args)


def _files(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(begun, type="file")]


@click.command(
    "launch",
    cls=RestartCommand,
    short_help="Start a master and several copies of a program.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--nproc", type=click.IntRange(1, 1024), default=2, show_default=True, help="number of peers")
@click.option(
    "--restart",
    type=click.IntRange(0),
    default=0,
    metavar="[N]",
    help=f"restart a peer that dies, up to N times, without N up to {RESTARTS} times  [default: never]",
)
@click.option(
    "--master",
    "address",
    metavar="HOST:PORT",
    help="join the run at this master, or list of masters, instead of starting a master",
)
@click.option(
    "--wait-for-master",
    "patience",
    type=Range(0),
    metavar="SECONDS",
    help="with --master: how long peers try to reach it  [default, and 0: five attempts of up to 5 s]",
)
@click.option(
    "--keys", type=click.Path(), metavar="FILE", help="key file of the run  [default: PCCL_KEYS, or new ones for this run alone]"
)
@click.option("--insecure", is_flag=True, help="use no keys: connections are neither authenticated nor encrypted")
@click.option(
    "--interface",
    metavar="NAME[,NAME...]",
    help="network cards of the peers, up to four  [default: PCCL_INTERFACE, or the system's choice]",
)
@click.option(
    "--min-members", type=click.IntRange(1), help="the run waits below so many members  [default: PCCL_MIN_MEMBERS, or 1]"
)
@click.option(
    "--max-members", type=click.IntRange(1), help="peers beyond so many wait as spares  [default: PCCL_MAX_MEMBERS, or no limit]"
)
@click.option("-m", "module", is_flag=True, help="PROGRAM is a Python module, as in python -m")
@click.argument(
    "program", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=_files, metavar="PROGRAM [ARGUMENTS]..."
)
def command(
    nproc: int,
    restart: int,
    address: str | None,
    patience: float | None,
    keys: str | None,
    insecure: bool,
    module: bool,
    program: tuple[str, ...],
    **named: Any,
) -> None:
    """Start a master and several copies of a Python program (peers) on this machine, and wait until all have ended.

    All peers get the same command line. Options after the program are the program's; a "--" right after it is dropped. The
    environment of each peer has the address of the master (PCCL_MASTER), the number of peers (PCCL_PEERS), and the number of
    this peer, from 0 on (PCCL_PEER). A restarted peer also has PCCL_JOIN=1: it joins the run of the others or fails. Each
    output line begins with the number of its peer.

    The run has keys of its own, so no other user of this machine can join or watch it. PCCL_KEYS names the peers' file. Only this
    user can read the files of keys, which are removed at the end. --keys, PCCL_KEYS and PCCL_CERT name other keys.

    If a peer dies, the others continue. --restart replaces it while another peer runs. Ctrl-C and SIGTERM go to the peers,
    which are killed after 10 s, or at a second Ctrl-C.

    If the reader of the output is slow, lines beyond 16 MiB are dropped and counted.

    Exit status: 0 if a peer has ended with 0 and none has failed. A peer that was killed while others continued has not failed,
    nor has a restarted one that came too late to join. Otherwise the status of the first failed peer; 128 + N if signal N killed
    all; 130 after Ctrl-C; 2 for wrong options.
    """
    arguments = list(program[1:])
    if arguments[:1] == ["--"]:
        del arguments[0]
    if not module and not program[0].startswith("-") and not os.path.exists(program[0]):
        advice = (
            "PROGRAM is the Python program itself, as in `pccl launch train.py`" if shutil.which(program[0]) else "check its path"
        )
        raise click.UsageError(f"there is no file {program[0]}; {advice}")
    words = [sys.executable, *(["-m"] if module else []), program[0], *arguments]
    if keys is not None and insecure:
        raise click.UsageError("--keys and --insecure contradict each other; leave one of them out")
    if insecure or keys is not None:
        for name in VARIABLES:
            os.environ.pop(name, None)
        os.environ.update({INSECURE_VARIABLE: "1"} if keys is None else {"PCCL_KEYS": os.path.abspath(keys)})
    least, most = named["min_members"], named["max_members"]
    if least is not None and most is not None and least > most:
        raise click.UsageError(f"--min-members {least} is more than --max-members {most}")
    os.environ.update({f"PCCL_{name.upper()}": str(value) for name, value in named.items() if value is not None})
    try:
        with _run(address) as run:
            click.echo(f"pccl launch: the master is {run['PCCL_MASTER']}", err=True)
            status = Launch(words, nproc, restart, run, patience).run()
    except PCCLError as error:
        if error.result == Result.INVALID_ARGUMENT:
            raise click.UsageError(error.detail) from None
        raise click.ClickException(str(error)) from None
    except (ValueError, AssertionError) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        advice = "; each peer takes 4, so raise the limit: ulimit -n 8192" if error.errno == errno.EMFILE else ""
        raise click.ClickException(f"{error}{advice}") from None
    sys.exit(status)


@contextlib.contextmanager
def _run(address: str | None) -> Iterator[dict[str, str]]:
    """Yields the environment of peers of this master; None: of a new one, which is there while this block is."""
    if address is not None:
        parse_endpoints(address)
        yield {"PCCL_MASTER": address}
        return
    with local_master() as run:
        if "PCCL_KEYS" in run:
            click.echo(f"pccl launch: the keys are in {run['PCCL_KEYS']}", err=True)
        elif not environment_has_some():
            click.echo(f"pccl launch: the run is not encrypted: {why_plain()}", err=True)
        yield run


class Printer:
    """A standard stream of the command. A thread writes to it, so that its reader may be slow or stopped.

    After ROOM_BYTES that nobody has read, lines are dropped, and counted in a line of their own.
    """

    def __init__(self, target: IO[str]) -> None:
        target.flush()
        self._target = target.fileno()
        self._name = str(target.name).strip("<>")
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._written = 0
        self._dropped = 0
        self._error: OSError | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name=f"pccl:{self._name}", daemon=True).start()

    def print(self, lines: bytes) -> None:
        """Queues whole lines and returns at once. OSError: the stream was closed at its other end."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._bytes + len(lines) > ROOM_BYTES:
                self._dropped += lines.count(b"\n")
                return
            if self._dropped > 0:
                text = f"pccl launch: {self._dropped} lines dropped: the reader of {self._name} is too slow\n"
                lines, self._dropped = text.encode() + lines, 0
            self._waiting.append(lines)
            self._bytes += len(lines)
            self._changed.notify_all()

    def close(self) -> None:
        """Waits until all is written, or until nobody has read anything for STALL_SECONDS."""
        with self._changed:
            written = -1
            while self._bytes > 0 and self._error is None and written != self._written:
                written = self._written
                self._changed.wait_for(lambda: self._bytes == 0 or self._error is not None, STALL_SECONDS)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                lines = memoryview(self._waiting.popleft())
            while lines:
                try:
                    count = os.write(self._target, lines[:WRITE_BYTES])
                except OSError as error:
                    with self._changed:
                        self._error = error
                        self._changed.notify_all()
                    return
                lines = lines[count:]
                with self._changed:
                    self._bytes -= count
                    self._written += count
                    self._changed.notify_all()


class Launch:
    """The peers of one command."""

    def __init__(
        self, command: Sequence[str], nproc: int, restarts: int, run: Mapping[str, str], patience: float | None = None
    ) -> None:
        self._command = command
        self._environment = {**os.environ, **run, "PCCL_PEERS": str(nproc), "PYTHONUNBUFFERED": "1"}
        self._environment[LEFT_STATUS_VARIABLE] = str(LEFT_STATUS)
        self._environment.pop(JOIN_VARIABLE, None)
        if patience is not None:
            self._environment[PATIENCE_VARIABLE] = str(patience)
        self._restarts = [restarts] * nproc  # left of each
        self._most = restarts
        self._numbers: dict[Process, int] = {}
        self._left: set[int] = set()  # the numbers of those who have told that they have left
        self._outside: set[int] = set()  # the numbers of those who have told that they could not join
        self._statuses: list[int] = []  # of those that were not started again
        self._statuses_outside: list[int] = []  # of those of them that could not join
        self._told: signal.Signals | None = None
        self._deadline = math.inf
        self._stdout = Printer(sys.stdout)
        together = os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
        self._stderr = self._stdout if together else Printer(sys.stderr)  # one writer for one file, so that lines stay whole
        self._fleet = Fleet(self._end, self._tell)

    def run(self) -> int:
        """Starts the peers, and returns the exit status when the last has ended. None outlives it, whatever is raised."""
        with self._fleet:
            for number in range(len(self._restarts)):
                self._start(number, {})
            while self._fleet.processes:
                left = None if self._deadline == math.inf else max(0.0, self._deadline - time.monotonic())
                if not self._fleet.turn(left):
                    self._kill()
            self._stdout.close()
            self._stderr.close()
        return self._status()

    def _start(self, number: int, extra: Mapping[str, str]) -> None:
        told, tells = os.pipe()
        environment = {**self._environment, "PCCL_PEER": str(number), PIPE_VARIABLE: str(tells), **extra}
        takes = [functools.partial(self._print, printer, f"[{number}] ".encode()) for printer in (self._stdout, self._stderr)]
        words = Output(os.fdopen(told, "rb"), functools.partial(self._hear, number))
        self._numbers[self._fleet.watch(Process(self._command, environment, *takes, told=words, tells=tells))] = number

    def _hear(self, number: int, words: list[bytes]) -> None:
        for word in words:
            if word == LEFT.encode():
                self._left.add(number)
            elif word == NOT_JOINED.encode():
                self._outside.add(number)
            elif word == IN_RUN.encode():
                self._outside.discard(number)

    @staticmethod
    def _print(printer: Printer, prefix: bytes, lines: list[bytes]) -> None:
        printer.print(b"".join(prefix + line + b"\n" for line in lines))

    def _end(self, process: Process, status: int) -> None:
        """Notes how a peer has ended, and starts it again if --restart says so."""
        number = self._numbers.pop(process)
        left = number in self._left and status == LEFT_STATUS
        outside = number in self._outside and status > 0 and self._restarts[number] < self._most
        self._left.discard(number)
        self._outside.discard(number)
        if status != 0:
            again = self._restarts[number] > 0 and self._told is None and bool(self._fleet.processes)
            then = "; restarting it" if again else ""
            how = "has left" if left else "could not join the run" if outside else how_ended(status)
            self._stderr.print(f"pccl launch: peer {number} {how}{then}\n".encode())
            if again:
                self._restarts[number] -= 1
                self._start(number, {JOIN_VARIABLE: "1"})
                return
        (self._statuses_outside if outside else self._statuses).append(0 if left else status)

    def _tell(self, number: signal.Signals) -> None:
        """Passes a signal on that ends the command; the second one kills."""
        if self._told is not None:
            self._kill()
            return
        self._told = number
        self._deadline = time.monotonic() + GRACE_SECONDS
        for process in self._fleet.processes:
            process.signal(number)

    def _kill(self) -> None:
        self._deadline = math.inf
        self._fleet.kill()

    def _status(self) -> int:
        if self._told is not None:
            return 128 + self._told
        failed = [status for status in self._statuses if status > 0]
        if failed:
            return failed[0]
        if 0 in self._statuses:
            return 0
        return self._statuses_outside[0] if self._statuses_outside else 128 - self._statuses[-1]
