"""A run of `pccl stress --program`: starts the copies of a program, injects the faults of a plan, and feeds the verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pccl._core.log import NOTICE
from pccl._host.files import open_log_file
from pccl._host.processes import Fleet, Process, adopt_orphans, children, end_children, signal_name
from pccl._host.waits import JOIN_VARIABLE
from pccl._run.credentials import environment_has_some
from pccl._run.master import MasterNode
from pccl._run.supervisor import joining
from pccl.lab.ports import free_ports
from pccl.stress.plan import Fault, plan_faults
from pccl.stress.proxy import Proxy
from pccl.stress.verdict import CLAIMS, Copy, Verdict

GRACE_SECONDS = 10.0
"""How long a copy may take to end after SIGTERM."""

LOOK_SECONDS = 0.1

LATE = 0.6
"""The share of the heartbeat limit for which a copy may be held without being expelled for it."""

RESTART_SECONDS = 0.5
"""Between the end of a copy and the start of its replacement."""

LOG_MOST = 256 << 20
"""Bytes of a copy's output that its log keeps."""


class ProgramError(Exception):
    """A copy of the program cannot be started; says why."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for."""

    command: tuple[str, ...]
    members: int
    seconds: float
    kinds: tuple[str, ...]
    seed: int
    every: float
    patience: float
    heartbeat_limit: float
    progress: re.Pattern[str]
    state: re.Pattern[str]
    out: Path


@dataclass(eq=False, kw_only=True)
class Member:
    """A copy, its process and its log."""

    copy: Copy
    log: IO[bytes]
    process: Process = field(init=False)
    logged: int = 0
    held_at: float = 0.0  # when the last stop or cut began


@dataclass(kw_only=True)
class Injected:
    """A fault that was injected, or skipped because nothing was there to harm."""

    fault: Fault
    at: float
    step: int | None
    skipped: str = ""
    recovered: float | None = None  # seconds until a copy that the fault did not touch made progress
    before: dict[Copy, int | None] = field(default_factory=dict)  # steps of the others

    def to_fields(self) -> dict[str, Any]:
        """As JSON."""
        fields = dataclasses.asdict(self.fault)
        return fields | {
            "injected_at": round(self.at, 3),
            "step": self.step,
            "skipped": self.skipped,
            "recovered_seconds": self.recovered,
        }


class Run:
    """One run. `say` prints a line for the user."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self._options, self._say_line = options, say
        self.verdict = Verdict(options.progress, options.state, options.patience)
        self.plan = plan_faults(
            seed=options.seed,
            members=options.members,
            seconds=options.seconds,
            every=options.every,
            kinds=options.kinds,
            heartbeat_limit=options.heartbeat_limit,
        )
        self.injected: list[Injected] = []
        self.interrupted: signal.Signals | None = None
        self._members: dict[Process, Member] = {}
        self._lives = [0] * options.members
        self._began = time.monotonic()
        self._formed: float | None = None
        self._agenda: list[tuple[float, Callable[[], None]]] = []
        self._ending: float | None = None  # when the copies that run on are asked to end
        self._killing: float | None = None
        self._fleet = Fleet(self._end, self._interrupt, whole_groups=True)
        self._proxy: Proxy | None = None
        self._masters = ""
        self._store_port = free_ports(1)[0]

    def perform(self) -> None:
        """Runs to the end. No process of the program outlives the call. ProgramError; OSError: a log cannot be written."""
        of_others = children()
        adopt_orphans()
        try:
            with contextlib.ExitStack() as stack:
                log_to(self._options.out / "master.log")
                master = stack.enter_context(MasterNode("127.0.0.1:0", heartbeat_limit=self._options.heartbeat_limit))
                port = master.port
                if "cut" in self._options.kinds:
                    self._proxy = stack.enter_context(Proxy(master.port, self._groups))
                    if environment_has_some():
                        self.verdict.notes.append("the run has keys, so cuts reach connections to the master alone")
                    port = self._proxy.port
                self._masters = f"127.0.0.1:{port}"
                stack.enter_context(self._fleet)
                for place in range(self._options.members):
                    self._start(place)
                self._say(f"{self._options.members} copies run, as processes {', '.join(str(one.pid) for one in self._members)}")
                while (self._fleet.processes or self._agenda) and self.verdict.held and self.interrupted is None:
                    self._fleet.turn(self._next())
                    self._act()
        finally:
            end_children(besides=of_others)
            for member in self._members.values():
                member.log.close()
        self.verdict.finish(sum(not one.skipped for one in self.injected))

    # ---- time ----

    def _next(self) -> float:
        due = min((at for at, _ in self._agenda), default=time.monotonic() + LOOK_SECONDS)
        return max(0.0, min(LOOK_SECONDS, due - time.monotonic()))

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        self._agenda.append((time.monotonic() + seconds, work))

    def _act(self) -> None:
        now = time.monotonic()
        for item in sorted((item for item in self._agenda if item[0] <= now), key=lambda item: item[0]):
            self._agenda.remove(item)
            item[1]()
        self.verdict.look(now)
        self._note_recoveries(now)
        if self._formed is None:
            self._form(now)
        elif self._ending is not None and now >= self._ending:
            self._ask_to_end(self.verdict.running())
            self._ending = None
        if late := self.verdict.too_late():
            self._ask_to_end(late)
        if self._killing is not None and now >= self._killing:
            self._give_up()

    def _form(self, now: float) -> None:
        """Begins with the faults once all copies have made progress."""
        if all(copy.step is not None for copy in self.verdict.copies):
            self._formed = now
            self._ending = now + self._options.seconds + max(self._options.seconds, self._options.patience)
            for fault in self.plan:
                self._later(fault.at, functools.partial(self._inject, fault))
            self._say(f"all copies make progress; {len(self.plan)} faults follow in {self._options.seconds:g} s")

    def _ask_to_end(self, copies: Sequence[Copy]) -> None:
        for process, member in self._members.items():
            if member.copy in copies and not member.copy.asked:
                member.copy.asked = True
                self._say(f"{member.copy} is still running; sending SIGTERM")
                process.signal_group(signal.SIGTERM)
                process.signal_group(signal.SIGCONT)
                self._killing = time.monotonic() + GRACE_SECONDS

    def _give_up(self) -> None:
        self._killing = None
        for member in self._members.values():
            if member.copy.asked:
                self.verdict.violate(
                    "exit", f"{member.copy} did not end within {GRACE_SECONDS:g} s of SIGTERM; {member.copy.quote()}"
                )

    # ---- copies ----

    def _groups(self) -> dict[int, int]:
        """The process group of each copy; the proxy's thread reads it."""
        return {member.copy.place: process.pid for process, member in list(self._members.items())}

    def _environment(self, place: int, life: int) -> dict[str, str]:
        options = self._options
        made = {
            "PCCL_SAME_HOST_MEMORY": "0",  # copies stand for machines, and the proxy sees all their bytes
            **os.environ,
            "PCCL_MASTER": self._masters,
            "PCCL_PEERS": str(options.members),
            "PCCL_PEER": str(place),
            "PCCL_SUPERVISED": "1",
            "PYTHONUNBUFFERED": "1",
            "RANK": str(place),
            "WORLD_SIZE": str(options.members),
            "LOCAL_RANK": str(place),
            "LOCAL_WORLD_SIZE": str(options.members),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store_port),
        }
        made.pop(JOIN_VARIABLE, None)
        return joining(made, self._masters) if life else made

    def _start(self, place: int) -> None:
        life = self._lives[place]
        self._lives[place] += 1
        log = open_log_file(self._options.out / log_name(place, life), append=False)
        member = Member(copy=self.verdict.started(place, life, time.monotonic()), log=log)
        take = functools.partial(self._take, member)
        try:
            member.process = self._fleet.watch(Process(self._options.command, self._environment(place, life), take))
        except OSError as error:
            log.close()
            raise ProgramError(f"cannot run {self._options.command[0]}: {error.strerror}") from None
        self._members[member.process] = member

    def _take(self, member: Member, lines: list[bytes]) -> None:
        now = time.monotonic()
        text = b"\n".join(lines) + b"\n"
        if member.logged < LOG_MOST:
            member.log.write(text[: LOG_MOST - member.logged])
        member.logged += len(text)
        for line in lines:
            self.verdict.line(member.copy, line, now)

    def _end(self, process: Process, status: int) -> None:
        member = self._members.pop(process)
        member.log.close()
        copy = member.copy
        self.verdict.ended(copy, status, time.monotonic())
        if not copy.killed:
            at = "" if copy.step is None else f" at step {copy.step}"
            self._say(f"{copy} ended with {'status ' + str(status) if status >= 0 else signal_name(-status)}{at}")
        if not copy.killed and status == 0:
            self._agenda.clear()  # the run ends: no more faults, and none is over later
            for other in self._members.values():
                self._release(other)

    # ---- faults ----

    def _inject(self, fault: Fault) -> None:
        member = next((one for one in self._members.values() if one.copy.place == fault.place), None)
        copy = member.copy if member is not None else None
        injected = Injected(fault=fault, at=self._now(), step=copy.step if copy is not None else None)
        self.injected.append(injected)
        if (member is None and fault.kind != "restart") or (copy is not None and copy.held):
            injected.skipped = "no copy was running" if copy is None else "the copy was still stopped or cut off"
            self._say(f"{fault}: skipped, {injected.skipped}")
            return
        injected.before = {other: other.step for other in self.verdict.running() if other is not copy}
        step = "" if injected.step is None else f", at step {injected.step}"
        self.verdict.fault = f"{fault} at {injected.at:.1f} s{step}"
        self._say(f"{fault}{step}")
        match fault.kind:
            case "kill" if member is not None:
                self._kill(member)
            case "restart":
                if member is not None:
                    self._kill(member)
                self._later(RESTART_SECONDS, functools.partial(self._start, fault.place))
            case "stop" if member is not None:
                self._hold(member, fault)
                member.process.signal_group(signal.SIGSTOP)
            case "cut" if self._proxy is not None and member is not None:
                self._cut(member, injected, self._proxy)

    def _kill(self, member: Member) -> None:
        member.copy.killed = True
        member.process.signal_group(signal.SIGKILL)

    def _cut(self, member: Member, injected: Injected, proxy: Proxy) -> None:
        fault = injected.fault
        if fault.how != "reset":
            self._hold(member, fault)
            proxy.hold(fault.place, drop=fault.how == "drop")
        elif proxy.reset(fault.place) == 0:
            injected.skipped = "the copy had no connection to another one, or none that can be cut"
            self._say(f"{fault}: skipped, {injected.skipped}")

    def _hold(self, member: Member, fault: Fault) -> None:
        member.copy.held += 1
        member.held_at = time.monotonic()
        member.copy.harmed = member.copy.harmed or fault.expels
        self._later(fault.seconds, functools.partial(self._release, member))

    def _release(self, member: Member) -> None:
        """Ends a stop or a cut."""
        if member.copy.held:
            member.process.signal_group(signal.SIGCONT)
            if self._proxy is not None:
                self._proxy.release(member.copy.place)
            now = time.monotonic()
            if now - member.held_at > LATE * self._options.heartbeat_limit:  # this process was late, on a busy machine
                member.copy.harmed = True
            self.verdict.released(member.copy, now)

    def _note_recoveries(self, now: float) -> None:
        for one in self.injected:
            if one.recovered is None and any(copy.step != step for copy, step in one.before.items()):
                one.recovered = round(now - self._began - one.at, 2)
                one.before = {}

    def _interrupt(self, number: signal.Signals) -> None:
        self.interrupted = number

    # ---- results ----

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _say(self, text: str) -> None:
        self._say_line(f"[{self._now():6.1f} s] {text}")

    def summary(self) -> dict[str, Any]:
        """The outcome, as JSON."""
        verdict, options = self.verdict, self._options
        injected = sum(not one.skipped for one in self.injected)
        details = verdict.details() | {"faults": f"{injected} injected"}
        judged = verdict.judged() | {"faults": injected > 0}
        if pauses := [one.recovered for one in self.injected if one.recovered is not None]:
            details["progress"] += f"; after a fault another copy made progress within {max(pauses):.1f} s"
        failed: dict[str, list[str]] = {}
        for violation in verdict.violations:
            failed.setdefault(violation.claim, []).append(violation.detail)
        return {
            "passed": verdict.held and self.interrupted is None,
            "interrupted": self.interrupted.name if self.interrupted else None,
            "command": list(options.command),
            "members": options.members,
            "seconds": options.seconds,
            "seed": options.seed,
            "checks": [
                {
                    "check": name,
                    "claim": claim,
                    "holds": name not in failed,
                    "judged": name in failed or judged[name],
                    "detail": "; ".join(failed.get(name, [details[name]])),
                }
                for name, claim in CLAIMS.items()
            ],
            "notes": verdict.notes,
            "planned": [dataclasses.asdict(fault) for fault in self.plan],
            "faults": [one.to_fields() for one in self.injected],
            "copies": [
                {name: getattr(copy, name) for name in ("place", "life", "killed", "status", "step", "lines")}
                | {"log": log_name(copy.place, copy.life)}
                for copy in verdict.copies
            ],
        }


class MasterLog(logging.StreamHandler[io.TextIOWrapper]):
    """Writes what the master logs to a file instead of standard error."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Does nothing: a full disk is told once, of a copy's log."""


def log_to(path: Path) -> None:
    """Writes what masters log from now on to a file: their last lines come when they have ended."""
    logger = logging.getLogger("pccl")
    for old in [one for one in logger.handlers if isinstance(one, MasterLog)]:
        logger.removeHandler(old)
    handler = MasterLog(io.TextIOWrapper(open_log_file(path, append=False), encoding="utf-8", line_buffering=True))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(NOTICE)


def log_name(place: int, life: int) -> str:
    """Returns the name of a copy's log."""
    return f"copy-{place}.log" if life == 0 else f"copy-{place}.{life}.log"


def write_summary(summary: dict[str, Any], out: Path) -> None:
    """Writes summary.json."""
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
