"""Runs a program as a child, so that a launcher which ends a job when one of its processes dies does not see that death.

`pccl.distributed.run` and `pccl.distributed.supervise` start it in place of the program. It does no more than this:

- Signals that ask it to end are passed on to the child, and it ends as the child does.
- A child that was killed, that fails after it was stopped, or that was to join and fails before it has, is *lost*. With
  PCCL_RESTARTS=N it is started anew up to N times, as a process that joins the run. A loss that is left is status 0 if the
  others go on, and the child's otherwise.
- A child that has left on a notice (`pccl.Left`) tells so, and ends with status 75, since PCCL_LEFT_STATUS is set for it. It is
  replaced like a lost one, unless this process was asked to end.
- When it is killed itself, the kernel kills the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from pccl._host.processes import ENDING, SUPERVISED, how_ended, prepare_child
from pccl._host.waits import LEFT, LEFT_STATUS, LEFT_STATUS_VARIABLE, PIPE_VARIABLE, left_status, tell_supervisor
from pccl._run.master import RunState, run_state

_OF_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
_KEPT = "PCCL_LAUNCHER_ENVIRONMENT"

_SI_KERNEL = 128
"""Of a signal that a terminal has sent, to the child as well."""

JOINED = "joined"
"""What a program tells when it has joined a run: from then on a failure is an error of its own."""

MASTERS = "masters "
"""The word of a program that gives the addresses of the masters of its run begins so."""

KEYS = "keys "
"""What a program tells before the path of the keys that its job has made."""

WORD_BYTES = 1 << 16
"""What is longer is no word of a program."""

READ_SECONDS = 0.5
"""Between two looks at what the program tells, so that it never waits for room in the pipe."""

STALL_SECONDS = 1.0
"""For how long it tries to write a line: a reader that is stopped stops neither the program nor its supervisor."""

SETTLE_SECONDS = 1.0
"""After which a run that was there still is, if it goes on: processes that are killed together do not die at one moment."""


def run(command: Sequence[str], restarts: int, child: Child | None = None) -> int:
    """Runs the command to its end; gives the status to exit with, negative: the signal to die of. `child` has begun it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who has started this process may ignore it
    masters, keys = os.environ.get("PCCL_MASTER", ""), os.environ.get("PCCL_KEYS", "")
    environment = dict(os.environ)
    joins = os.environ.get("PCCL_JOIN") == "1"
    while True:
        child = child or Child.start(command, environment)
        child.wait()
        child.close()
        masters, keys = child.masters or masters, child.keys or keys
        joined_in_vain = joins and not child.joined and child.status > 0
        left = child.left and child.status == LEFT_STATUS
        if left and child.asked:
            return _leave()
        if child.status == 0 or child.asked or not (left or child.status < 0 or child.stopped or joined_in_vain):
            return child.status
        how = "has left" if left else how_ended(child.status)
        state = _state_of_run(masters, keys)
        if state is RunState.NONE:
            _say(f"{how}; no run is under way")
            return _leave() if left else 0 if joined_in_vain else child.status
        if state is RunState.COMPLETED:
            _say(f"{how}; the others have completed the run")
            return 0
        if restarts == 0:
            _say(f"{how}; the others continue without it")
            return _leave() if left else 0
        restarts -= 1
        _say(f"{how}; it is restarted and joins the others ({restarts} restarts left)")
        environment = joining(os.environ, masters, keys)
        joins, child = True, None


def _leave() -> int:
    """Tells the launcher, if that is `pccl launch`, that the program has left, and gives the status for it."""
    tell_supervisor(LEFT)
    return left_status()


class Child:
    """The program as a process; `pipe` is where it tells the masters of its run, and that it has joined it."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._told = pipe
        os.set_blocking(pipe, False)
        self._rest = b""
        self.masters = ""
        """Of its run; "": it was in none."""
        self.keys = ""
        """The file of the keys that its job has made; "": none."""
        self.joined = False
        """Whether it has joined the run."""
        self.left = False
        """Whether it has left it in order."""
        self.status = 0
        self.asked = False
        """Whether it was asked to end."""
        self.stopped = False
        """Whether it was stopped at some time: the others have gone on without it, if that was long."""

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        told, tells = os.pipe()
        environment = {**environment, "PCCL_SUPERVISED": "1", PIPE_VARIABLE: str(tells)}
        environment[LEFT_STATUS_VARIABLE] = str(LEFT_STATUS)
        supervisor = os.getpid()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            prepare_child(supervisor)
            os.set_inheritable(tells, True)
            try:
                os.execvpe(command[0], list(command), environment)
            except OSError as error:
                print(f"pccl supervisor: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            finally:
                os._exit(127)
        os.close(tells)
        return cls(pid, told)

    def wait(self) -> None:
        """Until it has ended; passes signals on."""
        # A timer, since sigtimedwait of Python 3.11 gives any signal if this process was stopped beyond its deadline.
        signal.setitimer(signal.ITIMER_REAL, READ_SECONDS, READ_SECONDS)
        try:
            self._wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _wait(self) -> None:
        while True:
            info = signal.sigwaitinfo(SUPERVISED)
            self._read()
            if info.si_signo not in (signal.SIGCHLD, signal.SIGALRM):
                self.asked = self.asked or info.si_signo in (*ENDING, signal.SIGQUIT)
                if info.si_code != _SI_KERNEL:
                    os.kill(self._pid, info.si_signo)
                continue
            while True:
                pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    break
                if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                    self.status = os.waitstatus_to_exitcode(status)
                    return
                if not self.stopped:
                    _say("was stopped; the others continue without it if that lasts")
                self.stopped = True

    def close(self) -> None:
        """Takes the rest of what it has told, once it has ended."""
        self._read()
        self._take(self._rest)  # a word without an end of line
        os.close(self._told)

    def _read(self) -> None:
        """Takes what it has told since the last call. Only the newest masters count."""
        while True:
            try:
                chunk = os.read(self._told, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                return
            *words, rest = (self._rest + chunk).split(b"\n")
            self._rest = rest[:WORD_BYTES]
            for word in words:
                self._take(word)

    def _take(self, told: bytes) -> None:
        """Takes a word. Those of other readers, such as `pccl launch`, mean nothing here."""
        word = os.fsdecode(told)
        if word == JOINED:
            self.joined = True
        elif word == LEFT:
            self.left = True
        elif word.startswith(KEYS):
            self.keys = word.removeprefix(KEYS)
        elif word.startswith(MASTERS):
            self.masters = word.removeprefix(MASTERS)


def joining(environment: Mapping[str, str], masters: str, keys: str = "") -> dict[str, str]:
    """The environment of a process that joins: for torch a job of its own, with a store of its own, until the group is made."""
    made = {name: value for name, value in environment.items() if name not in _OF_LAUNCHER}
    launched = {name: environment[name] for name in _OF_LAUNCHER if name in environment}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    made |= {"PCCL_KEYS": keys} if keys else {}
    return {**made, **alone, _KEPT: json.dumps(launched), "PCCL_MASTER": masters, "PCCL_JOIN": "1"}


def restore_environment() -> None:
    """Gives a process that joins the RANK and WORLD_SIZE back that its launcher set: frameworks compare them with LOCAL_RANK."""
    launched = os.environ.pop(_KEPT, "")
    if launched:
        os.environ.update(json.loads(launched))


def _state_of_run(masters: str, keys: str) -> RunState:
    if not masters:
        return RunState.NONE
    state = run_state(masters, keys=keys)
    if state is RunState.SERVED:
        time.sleep(SETTLE_SECONDS)
        state = run_state(masters, keys=keys)
    return state


def _say(text: str) -> None:
    rank = os.environ.get("RANK")
    line = f"pccl supervisor: {'the program' if rank is None else f'rank {rank}'} {text}\n"
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        if select.select([], [2], [], STALL_SECONDS)[1]:  # then it has room for a line
            os.write(2, line.encode())


def main() -> None:
    """Arguments: `[--child PID --pipe DESCRIPTOR] program arguments...`; with --child, that process has begun the program."""
    text = os.environ.get("PCCL_RESTARTS", "") or "0"
    if not text.isdecimal():
        sys.exit(f"PCCL_RESTARTS={text} is invalid; set it to 0 or a larger number")
    command = sys.argv[1:]
    child = None
    if command[:1] == ["--child"]:
        child, command = Child(int(command[1]), int(command[3])), command[4:]
    status = run(command, int(text), child)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # that of the program is the one of interest
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        os.kill(os.getpid(), -status)
        status = 128 - status
    sys.exit(status)
