"""The demo's run: starts peers as `pccl launch` does, kills one, lets another join, shows and checks what they report."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pccl._host.files import open_log_file
from pccl._host.processes import Fleet, Process, how_ended, python
from pccl._host.waits import JOIN_VARIABLE
from pccl._run.own_keys import local_master

LINES = 20
"""Lines of progress where there is no terminal."""

SMOOTH = 10
"""Steps to either side that a mean of the picture takes in."""

STALL_SECONDS = 180.0
"""Without any report, after which the run is given up; generous, since the machine may be busy."""

STYLES = {"training": "green", "finished": "green", "killed": "red", "failed": "red"}


@dataclass(kw_only=True)
class Peer:
    """What a peer has reported."""

    number: int
    status: str = "starting"  # standing by, joining, training, killed, finished, failed
    step: int = 0
    loss: float = 0.0
    world: int = 0
    rate: float = 0.0  # tokens per second
    state: str = ""
    at: float = 0.0  # of the last step

    def row(self) -> list[str | Text]:
        """Its line of the live table."""
        status = Text(self.status, style=STYLES.get(self.status, "yellow"))
        return [f"{self.number}", status, f"{self.step}", f"{self.loss:.3f}", f"{self.world}", f"{self.rate:,.0f}", self.state]


class Run:
    """One run: `kill_step` and `join_step` are 0 if nothing happens."""

    def __init__(self, *, peers: int, steps: int, kill_step: int, join_step: int, seed: int, out: Path) -> None:
        self._count, self._steps, self._kill_step, self._join_step = peers, steps, kill_step, join_step
        self._seed, self._out = seed, out
        self._victim, self._newcomer = peers - 1, peers
        self._console = Console()
        self._live = Live(console=self._console, get_renderable=self._table) if self._console.is_terminal else None
        self._began = self._heard = time.monotonic()
        self._shown = 0
        self._processes: dict[Process, Peer] = {}
        self.peers = [Peer(number=number) for number in range(peers + bool(join_step))]
        self.started: dict[str, Any] = {}
        self.killed_at = 0.0
        self.recovered: dict[int, float] = {}  # seconds from the kill to the first step without the victim, by peer
        self.joined: dict[str, Any] = {}
        self.admitted: dict[int, float] = {}  # seconds that the newcomer held a peer up
        self.finished: dict[int, dict[str, Any]] = {}
        self.losses: dict[int, dict[int, float]] = defaultdict(dict)  # by step and peer
        self.states: dict[int, dict[int, str]] = defaultdict(dict)  # likewise
        self.interrupted: signal.Signals | None = None
        self.broken = ""

    def perform(self) -> None:
        """Runs to the end. No process outlives the call."""
        fleet = Fleet(self._end, self._interrupt)
        with self._live or contextlib.nullcontext(), local_master() as run, contextlib.ExitStack() as logs, fleet:
            for peer in self.peers:
                log = logs.enter_context(open_log_file(self._out / f"peer-{peer.number}.log", append=False))
                self._start(fleet, peer, run, log)
            pids = ", ".join(str(process.pid) for process in self._processes)
            self._say(f"the master listens on {run['PCCL_MASTER']}; the peers are processes {pids}")
            while fleet.processes and not self.broken and self.interrupted is None:
                fleet.turn(0.2)
                self._show_progress()
                if set(map(id, self._processes.values())) == {id(self.peers[-1])} and self.peers[-1].status == "standing by":
                    fleet.kill()  # nobody is left whom it could join
                if time.monotonic() - self._heard > STALL_SECONDS:
                    self.broken = f"no peer has reported progress for {STALL_SECONDS:.0f} s"

    def _start(self, fleet: Fleet, peer: Peer, run: dict[str, str], log: IO[bytes]) -> None:
        joins = peer.number == self._newcomer
        environment = {**run, "PCCL_PEERS": str(self._count), "PCCL_PEER": str(peer.number)}
        environment |= {JOIN_VARIABLE: "1" if joins else "0"}
        command = python("from pccl.demo.train import main; main()", f"--steps={self._steps}", f"--seed={self._seed}")
        command += ["--stand-by"] if joins else []
        process = Process(command, {**os.environ, **environment}, functools.partial(self._take, peer, log))
        self._processes[fleet.watch(process)] = peer

    def _take(self, peer: Peer, log: IO[bytes], lines: list[bytes]) -> None:
        log.write(b"\n".join(lines) + b"\n")
        for line in lines:
            if line.startswith(b"{"):
                self._heard = time.monotonic()
                self._report(peer, json.loads(line), self._heard)

    def _report(self, peer: Peer, told: dict[str, Any], now: float) -> None:
        peer.world = told.get("world", peer.world)
        step = next((told[name] for name in ("step", "joined", "admitted") if name in told), peer.step)
        if "state" in told:
            peer.state = f"{told['state'][:12]} @ {step}"
            self.states[step][peer.number] = told["state"]
        if "prepared" in told and peer.number == self._newcomer:
            peer.status = "standing by"
        elif "begins" in told:
            peer.status, peer.at = "training", now
            if not self.started:
                self.started = told
                self._say(f"{told['begins']} peers are connected; the model has {told['parameters']:,} parameters")
        elif "lost_a_peer" in told:
            self._say(f"peer {peer.number}: lost a peer in step {peer.step + 1}; averages again with world size {peer.world}")
        elif "admitted" in told:
            self.admitted[peer.number] = told["held_up"]
            self._say(
                f"peer {peer.number}: {peer.world} peers from step {step + 1} on; held up for {told['held_up'] * 1e3:.0f} ms"
            )
        elif "joined" in told:
            self.joined, peer.step, peer.status, peer.at = told, step, "training", now
            self._say(f"peer {peer.number} {self._joining()}")
        elif "finished" in told:
            self.finished[peer.number] = told
        elif "step" in told:
            self._step(peer, told, now)

    def _step(self, peer: Peer, told: dict[str, Any], now: float) -> None:
        rate = told["tokens"] / (now - peer.at)
        peer.step, peer.loss, peer.at = told["step"], told["loss"], now
        peer.rate = 0.9 * peer.rate + 0.1 * rate if peer.rate else rate
        self.losses[peer.step][peer.number] = peer.loss
        if self.killed_at and peer.world < self._count and peer.step >= self._kill_step:
            self.recovered.setdefault(peer.number, now - self.killed_at)
        if peer.number == self._victim and peer.step == self._kill_step - 1:
            peer.status, self.killed_at = "killed", now
            self._signal(peer, signal.SIGKILL)
            self.states[peer.step].pop(peer.number, None)  # the others may repeat its last step without it
            self._say(f"peer {peer.number} killed with SIGKILL in step {self._kill_step}")
        spare = self.peers[-1]
        if spare.status == "standing by" and peer.step >= self._join_step - 1:
            spare.status = "joining"
            self._signal(spare, signal.SIGUSR1)
            self._say(f"peer {spare.number} connects")

    def _signal(self, peer: Peer, number: signal.Signals) -> None:
        next(process for process, one in self._processes.items() if one is peer).signal(number)

    def _end(self, process: Process, status: int) -> None:
        peer = self._processes.pop(process)
        if peer.status == "killed":
            return
        peer.status = "finished" if status == 0 and peer.number in self.finished else "failed"
        if peer.status == "failed":
            self._say(f"peer {peer.number} {how_ended(status) if status else 'ended early'}; its log is in {self._out}")
            if not self.started:
                self.broken = f"peer {peer.number} ended before the training began"

    def _interrupt(self, number: signal.Signals) -> None:
        self.interrupted = number

    # ---- what is shown ----

    def _say(self, text: str) -> None:
        self._console.print(f"[{time.monotonic() - self._began:6.1f} s] {text}", markup=False, highlight=False, soft_wrap=True)

    def _show_progress(self) -> None:
        living = [peer for peer in self.peers if peer.status == "training"]
        if self._live is None and living and (step := min(peer.step for peer in living)) > self._shown:
            self._shown = step - step % max(1, self._steps // LINES) + max(1, self._steps // LINES) - 1
            losses = " ".join(f"{peer.loss:.3f}" for peer in living)
            rate = sum(peer.rate for peer in living)
            state = living[0].state or "-"
            self._say(f"step {step:4}  world {living[0].world}  loss {losses}  {rate:6,.0f} tokens/s  state {state}")

    def _table(self) -> Table:
        table = Table("peer", "status", "step", "loss", "world", "tokens/s", "state", expand=True, title=f"{self._steps} steps")
        for peer in self.peers:
            table.add_row(*peer.row(), style="dim" if peer.status == "killed" else "")
        return table

    def _marks(self) -> Iterator[tuple[int, str, str]]:
        """What happened: step, text, colour."""
        if self.killed_at:
            yield (
                self._kill_step,
                f"peer {self._victim} killed in step {self._kill_step}\n{self._count - 1} peers left",
                "#d55e00",
            )
        if self.joined:
            step, amount = self.joined["joined"] + 1, self.joined["received"] / (1 << 20)
            there = self._count - bool(self.killed_at) + 1
            text = f"peer {self._newcomer} joined in step {step}\nwith {amount:.1f} MiB of state\n{there} peers"
            yield step, text, "#009e73"

    def plot(self, path: Path) -> None:
        """Writes a picture of the loss."""
        from pccl.lab import plots

        figure = plots.figure(4.2)
        axes = figure.add_subplot()
        losses = self.curve()
        window = range(SMOOTH, len(losses) - SMOOTH)
        means = [sum(losses[at - SMOOTH : at + SMOOTH + 1]) / (2 * SMOOTH + 1) for at in window]
        axes.plot(range(1, len(losses) + 1), losses, color=plots.BLUE, alpha=0.35, linewidth=0.8, label="mean over peers")
        axes.plot([at + 1 for at in window], means, color=plots.BLUE, linewidth=1.8, label=f"mean over {2 * SMOOTH + 1} steps")
        for told in list(self.finished.values())[:1]:
            axes.plot(self._steps, told["held_out"], "D", color=plots.BLACK, label=f"held-out text: {told['held_out']:.3f}")
        marks = list(self._marks())
        for row, (step, text, colour) in enumerate(marks):
            axes.axvline(step, color=colour, linestyle="--", linewidth=1.2)
            right = row > 0 and step < 0.78 * self._steps  # where there is more room
            axes.text(
                step + (1 if right else -1) * self._steps / 100,
                0.98 - 0.18 * row,
                text,
                transform=axes.get_xaxis_transform(),
                color=colour,
                fontsize="small",
                ha="left" if right else "right",
                va="top",
            )
        if len(marks) == 2:
            axes.axvspan(marks[0][0], marks[1][0], color="#d55e00", alpha=0.06)
        axes.set(
            xlabel="step",
            ylabel="loss (nats per character)",
            title=f"Character transformer, {self._count} peers averaged by pccl",
        )
        plots.dress(axes)
        axes.legend(loc="lower left", frameon=False, fontsize="small")
        words = "; ".join(text.replace("\n", ", ") for _, text, _ in marks)
        plots.save(figure, path, {"Title": "Training with pccl", "Description": words})

    # ---- the verdict ----

    def curve(self) -> list[float]:
        """The loss of each step, as the mean over the peers."""
        return [sum(losses.values()) / len(losses) for _, losses in sorted(self.losses.items())]

    def _joining(self) -> str:
        told = self.joined
        amount = f"{told['received'] / (1 << 20):.1f} MiB from the memory of {told['donors']} peers"
        return f"joined for step {told['joined'] + 1}: {amount} in {told['seconds'] * 1e3:.0f} ms"

    def checks(self) -> Iterator[tuple[str, bool, str]]:
        """The verdict: claim, whether it holds, and what was found."""
        survivors = [peer for peer in self.peers if peer.status != "killed"]
        there = {peer.number for peer in survivors if peer.number != self._newcomer}
        if self._kill_step:
            slowest = max(self.recovered.values(), default=0.0)
            detail = f"{len(self.recovered)} of {len(there)}, at most {slowest * 1e3:.0f} ms after the kill"
            yield "the survivors continued without the killed peer", set(self.recovered) >= there, detail
        if self._join_step:
            holds, detail = False, f"peer {self._newcomer} has not joined before the last step"
            if self.joined:
                same = len(set(self.states[self.joined["joined"]].values())) == 1
                holds = same and set(self.admitted) >= there
                detail = f"peer {self._newcomer} {self._joining()}; {'the same hash' if same else 'other hashes'} on all then"
            yield "a new peer got the state from the memory of the others, and continued to train", holds, detail
        ended = [peer for peer in survivors if peer.status == "finished" and peer.world == len(survivors)]
        yield "every living peer made all steps", len(ended) == len(survivors), f"{len(ended)} of {len(survivors)}"
        last = {self.states[self._steps].get(peer.number, "nothing") for peer in survivors}
        split = [step for step, states in sorted(self.states.items()) if len(set(states.values())) > 1]
        detail = f"compared at {len(self.states)} steps; at the end {len(survivors)} peers with hash {', '.join(sorted(last))}"
        holds = not split and len(last) == 1 and "nothing" not in last
        yield "all peers have the same state, bit for bit", holds, f"different at step {split[0]}" if split else detail
        losses = self.curve()
        few = min(20, max(1, len(losses) // 5))
        first, final = sum(losses[:few]) / few, sum(losses[-few:]) / few
        detail = f"mean of the first {few} steps {first:.3f}, of the last {few} {final:.3f}"
        for told in list(self.finished.values())[:1]:
            detail += f"; on held-out text {self.started['held_out']:.3f}, then {told['held_out']:.3f}"
        yield "the loss fell", bool(losses) and final <= 0.9 * first, detail
