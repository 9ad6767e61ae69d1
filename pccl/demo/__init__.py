"""The demo: a small transformer learns English on several peers; one of them is killed, and a new one joins.

``run_demo`` is the whole of it. The parts: corpus (text), worker (one peer, and the network that it trains), run (orchestrator,
what peers and it tell each other, and verdict), display.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pccl.lab.folder import make_writable
from pccl.lab.signals import InterruptedRunError, Interruption

if TYPE_CHECKING:
    from rich.console import Console

    from pccl.demo.run import Options, Run

__all__ = ["run_demo"]

_NEEDED = ("torch", "numpy", "matplotlib", "rich")
_MIN_STEPS = 20
_STEPS_AFTER_JOIN = 5  # at least, so that the new peer finds the others still there


def run_demo(argv: list[str]) -> int:
    """Run the demo with these command-line arguments; returns the exit status.

    0: all checks hold. 1: one does not, or the run broke. 2: bad arguments or missing packages.
    128 + n: ended by signal n (130 for Ctrl-C). No process outlives the call.
    """
    return asyncio.run(_perform(argv))


async def _perform(argv: list[str]) -> int:
    interruption = Interruption()
    try:
        status = await _run(_parse(argv), interruption)
    except SystemExit as end:  # argparse has printed what there is to say
        status = end.code if isinstance(end.code, int) else 2
    except InterruptedRunError as error:
        print(f"{error}; all peers are stopped", file=sys.stderr)
        status = 1
    return status if interruption.number is None else 128 + interruption.number


def _parse(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="pccl demo",
        description="Train a small character-level transformer data-parallel on several peers (processes on this "
        "machine). One of them is killed with SIGKILL in the middle of a step, and the others go on. Later a new peer "
        "joins: it receives weights, optimiser, random numbers and step from the memory of the others and trains on "
        "with them. At the end all hold the same state, bit for bit. Takes about a minute on two cores.",
        epilog="Exit status: 0 all checks hold, 1 one does not, 2 bad arguments or missing packages, 130 Ctrl-C.",
    )
    parser.add_argument("--peers", type=int, default=3, metavar="N", help="peers at the start (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=600, metavar="N", help="training steps (default: %(default)s)")
    parser.add_argument(
        "--kill-step", type=int, metavar="N", help="step in which a peer is killed, from 1 (default: half of the steps)"
    )
    parser.add_argument(
        "--kill-peer", type=int, metavar="N", help="peer that is killed, from 0 (default: the one with the last number)"
    )
    parser.add_argument("--no-kill", action="store_true", help="kill nobody")
    parser.add_argument(
        "--join-step",
        type=int,
        metavar="N",
        help="step from which on a new peer connects, after that of the kill (default: halfway from the kill to the end)",
    )
    parser.add_argument("--no-join", action="store_true", help="let nobody join")
    parser.add_argument(
        "--kill-at-join",
        choices=("newcomer", "survivor"),
        help="kill also the new peer, or one that was there, while the state is handed over (default: neither)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the weights and batches (default: %(default)s)")
    parser.add_argument(
        "--data", metavar="FILE", help="UTF-8 text to learn (default: the documentation inside Python's own library)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo-out"),
        metavar="DIR",
        help="folder for loss.png, summary.json and the peers' logs (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="computing threads per peer (default: %(default)s)")
    return _checked(parser, parser.parse_args(argv))


def _checked(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Options:
    """The options, or the parser's own way out with a message and status 2."""
    _check_numbers(parser, args)
    kill_step = _checked_kill(parser, args)
    join_step = _checked_join(parser, args, kill_step)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"the demo needs {', '.join(missing)}: pip install 'pccl[demo]'")
    from pccl.demo.corpus import CorpusError, load_corpus
    from pccl.demo.run import Options

    try:
        load_corpus(args.data)
        make_writable(args.out)
    except CorpusError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write to {args.out}: {error.strerror}")
    return Options(
        peers=args.peers,
        steps=args.steps,
        kill_step=kill_step,
        kill_peer=args.peers - 1 if args.kill_peer is None else args.kill_peer,
        join_step=join_step,
        kill_at_join=args.kill_at_join,
        seed=args.seed,
        threads=args.threads,
        data=None if args.data is None else os.path.abspath(args.data),
        out=args.out,
    )


def _check_numbers(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for name, least, most in (("peers", 2, 64), ("threads", 1, 256), ("seed", 0, 2**32 - 1)):
        if not least <= getattr(args, name) <= most:
            parser.error(f"--{name} must be from {least} to {most}, not {getattr(args, name)}")
    if args.steps < _MIN_STEPS:
        parser.error(f"--steps must be at least {_MIN_STEPS}, not {args.steps}")


def _checked_kill(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int | None:
    """The step of the kill, None for no kill."""
    if args.kill_peer is not None and not 0 <= args.kill_peer < args.peers:
        parser.error(f"--kill-peer must be from 0 to {args.peers - 1}, not {args.kill_peer}")
    if args.no_kill:
        if args.kill_step is not None or args.kill_peer is not None:
            parser.error("--no-kill excludes --kill-step and --kill-peer")
        return None
    kill_step: int = args.steps // 2 if args.kill_step is None else args.kill_step
    if not 1 <= kill_step <= args.steps:
        parser.error(f"--kill-step must be from 1 to {args.steps} (the number of steps), not {kill_step}")
    return kill_step


def _checked_join(parser: argparse.ArgumentParser, args: argparse.Namespace, kill_step: int | None) -> int | None:
    """The step from which on a new peer joins, None for no join."""
    if args.no_join:
        if args.join_step is not None or args.kill_at_join is not None:
            parser.error("--no-join excludes --join-step and --kill-at-join")
        return None
    first, last = (kill_step or 0) + 1, args.steps - _STEPS_AFTER_JOIN
    if first > last:
        parser.error(
            f"a kill in step {kill_step} of {args.steps} leaves no time to join: give an earlier --kill-step, or --no-join"
        )
    join_step: int = (first + args.steps) // 2 if args.join_step is None else args.join_step
    if args.join_step is None:
        join_step = min(join_step, last)
    if not first <= join_step <= last:
        after = "" if kill_step is None else " (after the kill)"
        parser.error(f"--join-step must be from {first}{after} to {last}, not {join_step}")
    if args.kill_at_join == "survivor" and args.peers - (kill_step is not None) < 2:
        parser.error("--kill-at-join survivor needs two peers that live until then: give more --peers")
    return join_step


async def _run(options: Options, interruption: Interruption) -> int:
    from rich.console import Console

    from pccl.demo.display import LiveDisplay, PlainDisplay
    from pccl.demo.run import BrokenRunError, Conductor, Run
    from pccl.lab.processes import NurseryError

    console = Console()
    run = Run(options)
    try:
        with (LiveDisplay if console.is_terminal else PlainDisplay)(console, run) as display:
            await interruption.guard(Conductor(run, display).conduct())
    except* (BrokenRunError, NurseryError) as group:
        console.print(f"[red]{group.exceptions[0]}[/red]; the logs are in {options.out}", highlight=False)
    else:
        return _conclude(run, console)
    return 1


def _conclude(run: Run, console: Console) -> int:
    """Picture, summary and verdict."""
    from rich.text import Text

    from pccl.demo.display import plot

    checks = run.checks()
    passed = all(check.holds for check in checks)
    picture = run.options.out / "loss.png"
    plot(run, picture)
    _write_summary(run)
    ended = next((peer.finished for peer in run.survivors() if peer.finished is not None), None)
    if ended is not None:
        console.print(Text(f"\nThe model goes on after {ended.prompt!r}:\n{ended.prompt}{ended.sample}\n", style="dim"))
    for check in checks:
        mark = Text("ok    ", style="green") if check.holds else Text("FAILED", style="bold red")
        console.print(mark, Text(f"{check.claim}: {check.detail}"), soft_wrap=True)
    console.print(Text(f"loss curve in {picture}"), soft_wrap=True)
    console.print(Text("PASSED", style="bold green") if passed else Text("FAILED", style="bold red"))
    return 0 if passed else 1


def _write_summary(run: Run) -> None:
    summary = {
        "passed": all(check.holds for check in run.checks()),
        "checks": [{"claim": check.claim, "holds": check.holds, "detail": check.detail} for check in run.checks()],
        "kill_step": None if run.kill is None else run.kill.step,
        "recovered_ms": []
        if run.kill is None
        else [round((report.at - run.kill.at) * 1e3, 1) for report in run.kill.recovered.values()],
        "join": None
        if run.join.joined is None
        else {
            "peer": run.options.newcomer,
            **asdict(run.join.joined),
            "held_up_ms": {index: round(report.held_seconds * 1e3, 1) for index, report in sorted(run.join.admitted.items())},
        },
        "digests": {peer.index: peer.digest for peer in run.peers},
        "losses": [round(loss, 5) for _, loss in run.curve()],
    }
    (run.options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
