"""The demo: a small transformer learns English on several peers, and one of them is killed.

``run_demo`` is the whole of it. The parts: corpus (text), model (the network and its optimiser), worker (one peer),
reports (what peers and orchestrator tell each other), run (orchestrator and verdict), display, plot.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from pccl.demo.run import Options, Run

__all__ = ["run_demo"]

_NEEDED = ("torch", "numpy", "matplotlib", "rich")
_MIN_STEPS = 20


def run_demo(argv: list[str]) -> int:
    """Run the demo with these command-line arguments; returns the exit status.

    0: all checks hold. 1: one does not, or the run broke. 2: bad arguments or missing packages.
    128 + n: ended by signal n (130 for Ctrl-C). No process outlives the call.
    """
    with _signals_noted() as noted:
        try:
            status = _run(_parse(argv), interrupted=lambda: bool(noted))
        except SystemExit as end:  # argparse has printed what there is to say
            status = end.code if isinstance(end.code, int) else 2
    if noted:
        print(f"ended by {signal.Signals(noted[0]).name}; all peers are stopped", file=sys.stderr)
        return 128 + noted[0]
    return status


def _parse(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="pccl demo",
        description="Train a small character-level transformer data-parallel on several peers (processes on this "
        "machine), kill one of them with SIGKILL in the middle of a step, and check that the others go on and hold "
        "the same weights, bit for bit. Takes about two minutes on two cores.",
        epilog="Exit status: 0 all checks hold, 1 one does not, 2 bad arguments or missing packages, 130 Ctrl-C.",
    )
    parser.add_argument("--peers", type=int, default=3, metavar="N", help="peers at the start (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=800, metavar="N", help="training steps (default: %(default)s)")
    parser.add_argument(
        "--kill-step", type=int, metavar="N", help="step in which a peer is killed, from 1 (default: half of the steps)"
    )
    parser.add_argument(
        "--kill-peer", type=int, metavar="N", help="peer that is killed, from 0 (default: the one with the last number)"
    )
    parser.add_argument("--no-kill", action="store_true", help="kill nobody")
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
    kill_step = _checked_numbers(parser, args)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"the demo needs {', '.join(missing)}: pip install 'pccl[demo]'")
    from pccl.demo.corpus import CorpusError, load_corpus
    from pccl.demo.run import Options

    try:
        load_corpus(args.data)
        args.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=args.out).close()
    except CorpusError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write to {args.out}: {error.strerror}")
    return Options(
        peers=args.peers,
        steps=args.steps,
        kill_step=kill_step,
        kill_peer=args.peers - 1 if args.kill_peer is None else args.kill_peer,
        seed=args.seed,
        threads=args.threads,
        data=None if args.data is None else os.path.abspath(args.data),
        out=args.out,
    )


def _checked_numbers(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int | None:
    """Judge the numbers; returns the step of the kill, None for no kill."""
    if not 2 <= args.peers <= 64:
        parser.error(f"--peers must be from 2 to 64, not {args.peers}")
    if args.steps < _MIN_STEPS:
        parser.error(f"--steps must be at least {_MIN_STEPS}, not {args.steps}")
    if not 1 <= args.threads <= 256:
        parser.error(f"--threads must be from 1 to 256, not {args.threads}")
    if not 0 <= args.seed < 2**32:
        parser.error(f"--seed must be from 0 to {2**32 - 1}, not {args.seed}")
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


def _run(options: Options, interrupted: Callable[[], bool]) -> int:
    from rich.console import Console

    from pccl.demo.display import LiveDisplay, PlainDisplay
    from pccl.demo.run import BrokenRunError, InterruptedRunError, Run, conduct

    console = Console()
    run = Run(options)
    try:
        with (LiveDisplay if console.is_terminal else PlainDisplay)(console, run) as display:
            conduct(run, display, interrupted)
    except InterruptedRunError:
        return 1
    except BrokenRunError as error:
        console.print(f"[red]{error}[/red]; the logs are in {options.out}", highlight=False)
        return 1
    return _conclude(run, console)


def _conclude(run: Run, console: Console) -> int:
    """Picture, summary and verdict."""
    from rich.text import Text

    from pccl.demo.plot import plot

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
        "digests": {peer.index: peer.digest for peer in run.peers},
        "losses": [round(loss, 5) for _, loss in run.curve()],
    }
    (run.options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Inside, the signals that end a program are only noted, so that no process is lost between start and note.

    The first one also brings the old handlers back: a second Ctrl-C works as ever.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # What the parent had us ignore (nohup, a background job) stays ignored.
    before = {number: signal.getsignal(number) for number in endings if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, note)
        yield noted
    finally:
        restore()
