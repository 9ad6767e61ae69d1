"""The orchestrator: starts the master and the peers, does to them what the schedule says, watches, and feeds the judge.

One event loop. A task per process reads its reports until it ends; one goes through the schedule; one looks at the clock: who
stands still, what everyone uses. What happened is kept in ``Run``, which the displays and the summary read.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pccl.lab.ports import free_ports
from stress.backends import BACKENDS, Groups
from stress.content import CODES
from stress.judge import DEFAULT_GROWTH, Judge, Violation, growth
from stress.lab.display import Display
from stress.lab.events import EventLog
from stress.lab.nursery import DUMP_SIGNAL
from stress.lab.processes import Child, Nursery, Usage
from stress.options import Options
from stress.reports import Accepted, Alone, Board, Ended, Expelled, Flaw, Place, Report, Stepped, Task, Waiting
from stress.schedule import KILLS, MASTER_BACK_SECONDS, Fault, lateness
from stress.workload import SEGMENTED_MIN_BYTES, most_bytes

WATCH_SECONDS = 0.2
SAMPLE_SECONDS = 1.0
DUMP_SECONDS = 0.5
"""How long a process that stands still has to write its stacks before it is killed."""
OWN_DESCRIPTORS = 16
"""That a peer has for itself."""
LINK_DESCRIPTORS = 5
"""That another member may cost a peer: a direct link, and four lanes once they have been neighbours."""
RESUMED_CALLS = ("resume", "outer")
"""In which a peer may be in an op in retry mode that takes its time."""
KILL_SECONDS = 2.0
"""How long a kill waits for its moment."""
LEAVE_SECONDS = 10.0
"""How long the processes may take to leave once the last step is done, beyond the bound."""

GROUP_SECONDS = 0.02


@dataclass(kw_only=True, eq=False)
class Process:
    """A peer's process."""

    serial: int
    slot: int
    code: int
    child: Child
    log: Path
    began: float
    status: str = "starting"  # member, alone, expelled, waiting, stopped, delayed, waking, killed, ended, failed
    world: int = 0
    line: int = -1
    step: int = -1
    steps: int = 0
    lost: int = 0
    life: int = 0
    doomed: bool = False  # its end is no surprise
    back: float | None = None  # seconds after its end until another takes the place; None: nobody does
    held: int = 0  # stops and delays that it is in
    place: Place | None = None
    moved: float = 0.0  # when `place` changed last
    usages: list[Usage] = field(default_factory=list)
    descriptors: int = 0


@dataclass(kw_only=True, eq=False)
class Master:
    """The place of a master, or of a standby."""

    address: str
    log: str
    child: Child | None = None  # None: it was killed, and is not back yet
    usages: list[Usage] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What was committed since the last one."""

    at: float  # seconds since the run had formed
    bytes: int
    ops: int
    world: int  # the largest that anyone has


class Run:
    """All that is known about a run."""

    def __init__(self, options: Options, faults: Sequence[Fault]) -> None:
        self.options = options
        self.faults = list(faults)
        training = options.training()
        self.judge = Judge(
            heartbeat_limit=options.beat,
            bound=options.bound,
            recovery=options.recovery,
            delay=training.delay if training else None,
        )
        self.processes: dict[int, Process] = {}  # living, by serial
        self.masters: list[Master] = []
        self.moments: list[Moment] = []
        self.applied: list[Fault] = []
        self.counts: Counter[str] = Counter()
        self.epoch = 0.0  # when it had formed, on the monotonic clock
        self.lasted = 0.0  # seconds
        self.longest = (0.0, "")  # wait in one call
        self._counted: dict[tuple[int, int], None] = {}  # the last steps by name, in order

    @property
    def violations(self) -> list[Violation]:
        """What did not hold."""
        return self.judge.violations

    @property
    def step(self) -> int:
        """The furthest step that anyone has made."""
        return max((process.step for process in self.processes.values()), default=-1)

    def count(self, report: Stepped) -> None:
        """Counts each step's ops once, whoever tells of them first."""
        name = report.line, report.step
        if name in self._counted:
            return
        self._counted[name] = None
        if len(self._counted) > 4096:
            self._counted = dict.fromkeys(list(self._counted)[-1024:])
        self.counts["steps"] += 1
        self.counts["ops"] += len(report.ops)
        self.counts["resumed"] += sum(len(op.ranges) > 1 for op in report.ops)
        self.counts["bytes"] += sum(op.reduced for op in report.ops)  # of all that took part
        self.counts[f"{report.work} steps"] += 1

    def goodput(self) -> float:
        """Bytes per second of tensors that were reduced, those of all peers that took part together."""
        return sum(moment.bytes for moment in self.moments) / self.lasted if self.lasted else 0.0


class Conductor:
    """Conducts one run."""

    def __init__(self, run: Run, folder: Path, log: EventLog | None, display: Display[Run]) -> None:
        self._run, self._options, self._judge = run, run.options, run.judge
        self._folder = folder
        self._log = log
        self._display = display
        self._backend = BACKENDS[run.options.backend]
        self._life = self._backend.life(run.options.workload)
        self._groups = self._backend.groups(run.options.beat + 1)
        self._masters = [
            Master(address=f"127.0.0.1:{port}", log=f"master-{number}.log")
            for number, port in enumerate(free_ports(1 + run.options.standbys))
        ]
        run.masters = self._masters
        self._addresses = ",".join(master.address for master in self._masters)
        # Each step allocates and frees a different amount.
        self._growth_limits = replace(DEFAULT_GROWTH, bytes=DEFAULT_GROWTH.bytes + most_bytes(run.options.elements))
        self._serial = 0
        self._last_world = 1
        self._free_codes = list(range(CODES))
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._going_on = True  # the places of the dead are taken again
        self._nursery: Nursery
        self._board: Board

    async def conduct(self) -> None:
        """The whole run. No process outlives it, whatever happens."""
        lives = [self._life, self._backend.master]
        with Board() as self._board:
            async with Nursery(lives, self._folder, [self._board.fd]) as self._nursery:
                await self._conduct()

    async def _conduct(self) -> None:
        body: asyncio.Task[None] | None = None
        try:
            for master in self._masters:
                await self._start_master(master)
            self._do(self._watch())
            if self._groups is not None:
                self._do(self._form_groups(self._groups))
            body = asyncio.create_task(self._perform())
            await asyncio.wait({body, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            (self._failure if self._failure.done() else body).result()
        finally:
            self._run.lasted = time.monotonic() - self._run.epoch if self._run.epoch else 0.0
            going_on = {*self._tasks, body} if body is not None else self._tasks
            for task in going_on:
                task.cancel()
            await asyncio.gather(*going_on, return_exceptions=True)

    async def _perform(self) -> None:
        for slot in range(self._options.peers):
            await self._start_peer(slot)
        await self._come_together("at the start")
        self._run.epoch = time.monotonic()
        if self._log is not None:
            self._log.epoch = self._run.epoch
        self._note("formed", self._run.epoch)
        blows = []
        for fault in self._run.faults:
            await self._reach(fault)
            blow = self._do(self._apply(fault))
            if fault.kind in ("kill", "stop", "delay"):
                blows.append(blow)
        await asyncio.sleep(max(0.0, self._run.epoch + self._options.seconds - time.monotonic()))
        await asyncio.gather(*blows)  # a kill may still wait for its moment
        await self._finish()

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs beside everything else; if it fails, the run fails."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    # ---- processes ----

    async def _start_master(self, master: Master) -> None:
        task = {
            "listen": master.address,
            "beat": self._options.beat,
            "masters": self._addresses if self._options.standbys else None,
        }
        master.child = await self._nursery.start(self._backend.master, task, self._folder / master.log)
        master.usages = []
        self._do(self._core_master(master, master.child))

    async def _core_master(self, master: Master, child: Child) -> None:
        status = await child.status
        child.close()
        if child is master.child and self._going_on:
            self._judge.master_ended(time.monotonic(), f"the master at {master.address} ended by itself, with status {status}")
            self._look_at_violations()

    async def _start_peer(self, slot: int) -> Process:
        serial = self._serial
        self._serial += 1
        code = self._free_codes.pop(0)
        self._board.clear(code)
        options = self._options
        task = Task(
            serial=serial,
            slot=slot,
            code=code,
            masters=self._addresses,
            seed=options.seed,
            elements=options.elements,
            beat=options.beat,
            backend=options.backend,
            workload=options.workload,
            plant=options.plant if slot == 1 else "",
            board=self._board.fd,
        )
        log = self._folder / f"peer-{serial}.log"
        environment = {
            "PCCL_MASTER_RECOVERY_MS": str(round(options.recovery * 1000)),
            "PCCL_SEGMENTED_MIN_BYTES": str(SEGMENTED_MIN_BYTES),
        }
        self._judge.started(serial, slot, code, time.monotonic())
        child = await self._nursery.start(self._life, task.to_fields(), log, environment)
        now = time.monotonic()
        process = Process(serial=serial, slot=slot, code=code, child=child, log=log, began=now, moved=now)
        self._run.processes[serial] = process
        self._run.counts["processes"] += 1
        self._note("process", now, serial=serial, slot=slot, code=code, pid=child.pid)
        self._do(self._listen(process))
        return process

    async def _listen(self, process: Process) -> None:
        """Takes its reports until it ends, and puts another in its place."""
        while line := await process.child.line():
            self._take(process, Report.from_line(line))
        status = await process.child.status
        now = time.monotonic()
        expected = process.doomed or (process.status == "ended" and status == 0)
        process.status = "killed" if process.doomed else "ended" if expected else "failed"
        self._judge_growth(process, now)
        self._judge.gone(process.serial, now, status, expected=expected)
        self._note("gone", now, serial=process.serial, status=status, expected=expected)
        if not expected:
            self._display.say(f"peer {process.slot} ended by itself with status {status}; its words are in {process.log}")
        self._run.processes.pop(process.serial)
        if self._groups is not None:
            self._groups.gone(process.serial)
        self._free_codes.append(process.code)
        process.child.close()
        if expected and process.log.stat().st_size == 0:
            process.log.unlink()  # of hundreds
        self._look_at_violations()
        back = process.back if process.doomed else 0.0 if not expected else None
        if back is not None:
            await asyncio.sleep(back)
            if self._going_on:
                await self._start_peer(process.slot)

    def _take(self, process: Process, report: Report) -> None:
        run = self._run
        self._judge.take(process.serial, report)
        fields = report.to_fields()
        match report:
            case Accepted():
                process.status, process.world = "member", report.world
                run.counts["accepted"] += 1
            case Stepped():
                process.status = "member"
                process.world, process.line, process.step = report.world, report.line, report.step
                process.steps += 1
                process.lost += report.lost
                run.counts["losses seen"] += report.lost
                run.count(report)
                fields["ops"] = len(report.ops)
            case Alone():
                process.status, process.world = "alone", 1
                run.counts["alone"] += 1
            case Expelled():
                process.status, process.world = "expelled", 0
                process.life += 1
                run.counts["expelled"] += 1
            case Ended():
                process.status = "ended"
            case Waiting():
                process.status = "waiting"
                run.counts["groups left"] += 1
                if self._groups is not None:
                    self._groups.waits(process.serial)
            case Flaw():
                process.status = "failed"
        del fields["at"]
        self._note("report", report.at, serial=process.serial, **fields)
        self._look_at_violations()

    async def _form_groups(self, groups: Groups) -> None:
        while True:
            await asyncio.sleep(GROUP_SECONDS)
            for serial, order in groups.orders(time.monotonic(), self._run.processes):
                self._run.processes[serial].child.order(order)
            self._run.counts["groups"] = groups.formed

    # ---- faults ----

    async def _reach(self, fault: Fault) -> None:
        """Waits until it is time for it."""
        await asyncio.sleep(max(0.0, self._run.epoch + fault.at - time.monotonic()))

    async def _apply(self, fault: Fault) -> None:
        now = time.monotonic()
        fault = replace(fault, step=self._run.step)
        self._run.applied.append(fault)
        process = self._in_slot(fault.slot)
        met = process is not None or fault.kind in ("join", "master")
        self._run.counts[fault.kind if met else "missed"] += 1
        serial = process.serial if process is not None else None
        self._note("fault", now, fault=fault.to_fields(), serial=serial, met=met, took=round(now - self._run.epoch, 4))
        match fault.kind:
            case "join":
                await self._visit(fault)
            case "master":
                await self._kill_master(fault)
            case _ if process is None:
                pass  # the place is empty at the moment
            case "kill":
                await self._kill_at(process, fault)
            case "stop" | "delay":
                await self._hold(process, fault)
            case "cut":
                self._judge.cut(process.serial, now)
                process.child.order({"order": "cut", "how": fault.how})

    def _in_slot(self, slot: int) -> Process | None:
        for process in self._run.processes.values():
            if process.slot == slot and not process.doomed:
                return process
        return None

    def _kill(self, process: Process, back: float | None) -> None:
        process.doomed, process.back, process.status = True, back, "killed"
        process.child.signal(signal.SIGKILL)

    async def _kill_at(self, process: Process, fault: Fault) -> None:
        late = time.monotonic() + KILL_SECONDS
        while fault.how == KILLS[1] and self._board.read(process.code).call not in RESUMED_CALLS and time.monotonic() < late:
            await asyncio.sleep(0.001)
        if fault.how == KILLS[1]:
            await asyncio.sleep(lateness(fault))
        if not process.doomed and process.serial in self._run.processes:
            self._kill(process, fault.back)

    async def _hold(self, process: Process, fault: Fault) -> None:
        begin = time.monotonic()
        self._judge.stopped(process.serial, begin, begin + fault.seconds)
        process.held += 1
        if process.status != "ended":
            process.status = "stopped" if fault.kind == "stop" else "delayed"
        process.child.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        process.held -= 1
        if not process.held and not process.doomed:
            process.moved = time.monotonic()
            if process.status != "ended":
                process.status = "waking"
            process.child.signal(signal.SIGCONT)

    async def _visit(self, fault: Fault) -> None:
        """An additional peer comes, and leaves or dies."""
        process = await self._start_peer(fault.slot)
        await asyncio.sleep(fault.seconds)
        if process.doomed:
            return
        if fault.how == "kill":
            self._kill(process, None)
        else:
            process.child.order({"order": "leave"})

    async def _kill_master(self, fault: Fault) -> None:
        """Kills the one that serves, which is the one with connections; it comes back, but a standby may be faster."""
        now = time.monotonic()
        living = [(child, master) for master in self._masters if (child := master.child) is not None]
        if not living:
            return
        usages = [child.usage(now) for child, _ in living]
        descriptors = [usage.descriptors if usage is not None else 0 for usage in usages]
        child, master = living[descriptors.index(max(descriptors))]
        back = fault.back if len(living) > 1 else min(fault.back, MASTER_BACK_SECONDS[1])
        self._judge.master_died(now)
        self._judge_master_growth(master)
        master.child = None
        child.signal(signal.SIGKILL)
        await child.status
        await asyncio.sleep(back)
        await self._start_master(master)

    def _judge_master_growth(self, master: Master) -> None:
        if grown := growth(master.usages, DEFAULT_GROWTH):
            self._judge.grew(time.monotonic(), f"the master at {master.address}: {grown}")

    # ---- watching ----

    async def _watch(self) -> None:
        due = time.monotonic()
        seen: Counter[str] = Counter()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            for process in list(self._run.processes.values()):
                self._look_at(process, now)
            if now >= due:
                due = now + SAMPLE_SECONDS
                self._sample(now)
            if self._run.epoch:
                counts = self._run.counts
                world = max((process.world for process in self._run.processes.values()), default=0)
                moment = Moment(
                    at=now - self._run.epoch, bytes=counts["bytes"] - seen["bytes"], ops=counts["ops"] - seen["ops"], world=world
                )
                self._run.moments.append(moment)
                self._run.lasted = moment.at
            seen = Counter(self._run.counts)
            self._display.update(self._run)

    def _look_at(self, process: Process, now: float) -> None:
        """Whether it has come on; a process that is held is not asked."""
        place = self._board.read(process.code)
        if process.doomed or process.held or place != process.place:
            process.place = place
            process.moved = now
            return
        still = now - process.moved
        if still > self._run.longest[0]:
            self._run.longest = still, place.call or "no call"
        if still > self._options.bound:
            process.doomed, process.back = True, 0.0
            others = [f"peer {one.slot} in {one.place.call or 'no call'}" for one in self._run.processes.values() if one.place]
            self._judge.hung(process.serial, now, f"{place.call or 'no call'} of step {place.step}", still, ", ".join(others))
            self._do(self._put_down(process))

    async def _put_down(self, process: Process) -> None:
        """One that stands still leaves its stacks in its log, and dies."""
        for other in self._run.processes.values():
            other.child.signal(DUMP_SIGNAL)
        await asyncio.sleep(DUMP_SECONDS)
        self._kill(process, 0.0)
        self._look_at_violations()

    def _sample(self, now: float) -> None:
        usages = {}
        world = max((process.world for process in self._run.processes.values()), default=1)
        members, self._last_world = max(world, self._last_world), world  # links to one who has just gone still close
        for process in self._run.processes.values():
            if (usage := process.child.usage(now)) is not None:
                usages[process.serial] = [usage.bytes, usage.descriptors]
                process.descriptors = usage.descriptors
                beyond = max(0, usage.descriptors - OWN_DESCRIPTORS - LINK_DESCRIPTORS * (members - 1))
                process.usages.append(replace(usage, descriptors=beyond))
        for number, master in enumerate(self._masters):
            if master.child is not None and (usage := master.child.usage(now)) is not None:
                master.usages.append(usage)
                usages[-1 - number] = [usage.bytes, usage.descriptors]
        if self._run.epoch:
            counts = self._run.counts
            self._note("sample", now, bytes=counts["bytes"], ops=counts["ops"], steps=counts["steps"], usage=usages)

    def _judge_growth(self, process: Process, now: float) -> None:
        if grown := growth(process.usages, self._growth_limits):
            self._judge.grew(now, f"peer {process.slot} (process {process.serial}): {grown}")

    def _note(self, event: str, at: float, **fields: Any) -> None:
        if self._log is not None:
            self._log.write(event, at, **fields)

    def _look_at_violations(self) -> None:
        for violation in self._judge.violations[self._run.counts["violations"] :]:
            self._run.counts["violations"] += 1
            self._note("violation", violation.at, claim=violation.claim, detail=violation.detail)
            self._display.say(f"VIOLATION ({violation.claim}): {violation.detail}")
        if self._judge.violations and not self._options.keep_going and not self._failure.done():
            self._failure.set_result(None)

    # ---- the beginning and the end ----

    async def _come_together(self, when: str) -> None:
        """Waits until every place is taken by a member, and all are in one world."""
        end = time.monotonic() + 2 * self._options.bound
        while not self._together():
            if time.monotonic() > end:
                worlds = {process.slot: f"{process.status}, world {process.world}" for process in self._run.processes.values()}
                self._judge.not_whole(time.monotonic(), f"the peers did not come together {when}: {worlds}")
                self._look_at_violations()
                return
            await asyncio.sleep(0.02)

    def _together(self) -> bool:
        members = [process for process in self._run.processes.values() if not process.doomed]
        return {process.slot for process in members} >= set(range(self._options.peers)) and all(
            process.status == "member" and process.steps > 0 and process.world == len(members) for process in members
        )

    async def _finish(self) -> None:
        """Lets the run recover from the last fault, and all leave together."""
        for process in list(self._run.processes.values()):
            if process.slot >= self._options.peers and not process.doomed:
                process.child.order({"order": "leave"})
        await self._come_together("after the last fault")
        self._going_on = False
        self._run.lasted = time.monotonic() - self._run.epoch
        staying = [
            process for process in self._run.processes.values() if process.slot < self._options.peers and not process.doomed
        ]
        for process in staying:
            process.child.order({"order": "end"})
        end = time.monotonic() + self._options.bound + LEAVE_SECONDS
        while self._run.processes and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._judge.finish(time.monotonic(), [process.serial for process in staying])
        for master in self._masters:
            self._judge_master_growth(master)
        self._look_at_violations()
