"""The command line of `pccl stress`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import pccl
from pccl._host.files import open_log
from pccl.lab.folder import alone_in, find_file, make_writable
from pccl.lab.ranges import Range
from stress.backends import BACKENDS
from stress.lab.signals import InterruptedRunError, Interruption
from stress.options import MOST_PEERS, MOST_STANDBYS, Options
from stress.schedule import DEFAULT_RATES, Fault, rates_text, read_rates
from stress.workload import MIXED, WORKLOADS

if TYPE_CHECKING:
    from rich.console import Console

    from stress.conductor import Run
    from stress.lab.events import EventLog

MOST_BASELINE_SECONDS = 20.0
RESULTS = ("events.jsonl", "summary.*", "throughput.png", "peer-*.log", "master-*.log")
"""Files of a run that another one would overwrite."""


def _rates(context: click.Context, parameter: click.Parameter, text: str) -> dict[str, float]:
    try:
        return read_rates(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    short_help="Chaos-test real processes.",
    epilog="Exit status: 0 everything held, 1 something did not, 2 bad arguments or missing packages, 130 Ctrl-C (the summary of "
    "what was done until then is written).",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--peers", type=click.IntRange(2, MOST_PEERS), default=3, show_default=True, help="places that peers take")
@click.option("--seconds", type=Range(1, 86400), help="how long  [default: 30]")
@click.option("--minutes", type=Range(0.02, 1440), help="how long, in minutes")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="of the faults and of the ops")
@click.option("--fault-every", "every", type=Range(0.05), default=2.0, show_default=True, help="seconds, in the mean")
@click.option(
    "--faults",
    "rates",
    callback=_rates,
    default=rates_text(DEFAULT_RATES),
    show_default=True,
    metavar="KIND=RATE,...",
    help="how often each kind comes, relative to the others: kill (SIGKILL; another process takes the place), stop (SIGSTOP for "
    "longer than the heartbeat limit), cut (connections to other peers break), delay (SIGSTOP for less), join (another peer "
    "comes, and leaves or dies), master (SIGKILL of the master, which comes back); empty: none",
)
@click.option(
    "--elements",
    type=click.IntRange(1024, 1 << 28),
    default=1 << 18,
    show_default=True,
    help="of the largest reduce; ops in retry mode have up to 32 times as many, and a model 1/64 to 6 times as many parameters",
)
@click.option("--heartbeat-limit", "beat", type=Range(0.3, 60), default=1.5, show_default=True, help="seconds of silence")
@click.option(
    "--backend",
    type=click.Choice(list(BACKENDS)),
    default="pccl",
    show_default=True,
    help="what reduces; others than pccl: from a checkout",
)
@click.option(
    "--workload",
    type=click.Choice(WORKLOADS),
    default=MIXED,
    show_default=True,
    help="what the peers do: reduces of all kinds and syncs, or outer steps of DiLoCo, AsyncDiLoCo or StreamingDiLoCo of "
    "pccl.diloco, whose settings are drawn from the seed (needs torch)",
)
@click.option(
    "--baseline",
    type=Range(0, 3600),
    help="seconds without faults, half before and half after, to compare with; 0: none",
)
@click.option(
    "--standbys",
    type=click.IntRange(0, MOST_STANDBYS),
    default=0,
    show_default=True,
    help="masters that take over: every other killed master then stays away for some time",
)
@click.option("--keep-going", is_flag=True, help="go on after something was found")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="stress-out",
    show_default=True,
    help="folder for all files, without results of another run",
)
@click.option(
    "--log", type=click.Path(dir_okay=False, path_type=Path), help="the events, as JSON lines  [default: OUT/events.jsonl]"
)
@click.pass_context
def stress(context: click.Context, /, **given: Any) -> None:
    """Do harm to a run of real processes for a while, and judge by the contents of the results whether it holds.

    A master and some peers reduce and sync a shared state, or train by pccl.diloco, while a seeded schedule of faults is applied.
    What each process contributes can be recognised in the sums: so every result proves who took part in it.
    """
    options = _options(context, given)
    backend = BACKENDS[options.backend]
    if not backend.life(options.workload):
        raise click.UsageError(f"--workload {options.workload} is of the backend pccl alone, not of {options.backend}")
    if missing := backend.missing(options.workload):
        others = [name for name in missing if name in ("torch", "torchft")]
        wanted = " ".join(["'pccl[stress]'", *others] if len(others) < len(missing) else others)
        chosen = f"--backend {options.backend}" if options.workload == MIXED else f"--workload {options.workload}"
        raise click.UsageError(f"{chosen} needs {', '.join(missing)}: pip install {wanted}")
    sys.exit(run(options))


def _survivable(context: click.Context, rates: dict[str, float], backend: str) -> dict[str, float]:
    """Without the death of the master, where nothing survives it."""
    if BACKENDS[backend].own or not rates.get("master"):
        return rates
    if context.get_parameter_source("rates") is not ParameterSource.DEFAULT:
        raise click.UsageError(f"--faults master: --backend {backend} does not survive its master")
    return {kind: rate for kind, rate in rates.items() if kind != "master"}


def _options(context: click.Context, given: dict[str, Any]) -> Options:
    if given["seconds"] is not None and given["minutes"] is not None:
        raise click.UsageError("--seconds and --minutes exclude each other")
    seconds = given["minutes"] * 60 if given["minutes"] is not None else given["seconds"] or 30.0
    out = given["out"]
    log = given["log"] or out / "events.jsonl"
    try:
        make_writable(out)
        if found := find_file(out, *RESULTS):
            raise click.UsageError(f"{out} has results of another run, such as {found.name}: name another folder with --out")
        if log.is_file() and log.stat().st_size > 0:
            raise click.UsageError(f"{log} is the log of another run: name another file with --log")
        os.close(open_log(log))
    except OSError as error:
        raise click.UsageError(f"cannot write to {error.filename or out}: {error.strerror}") from None
    fields = {name: value for name, value in given.items() if name not in ("seconds", "minutes", "out", "log", "baseline")}
    fields["rates"] = _survivable(context, fields["rates"], fields["backend"])
    if fields["standbys"] and not BACKENDS[fields["backend"]].own:
        raise click.UsageError(f"--standbys: --backend {fields['backend']} has one master")
    baseline = given["baseline"] if given["baseline"] is not None else min(MOST_BASELINE_SECONDS, seconds / 3)
    return Options(**fields, seconds=seconds, baseline=baseline, out=out, log=log)


def run(options: Options, faults: list[Fault] | None = None) -> int:
    """Runs with the faults of the options, or with others, and gives the exit status. No process outlives the call."""
    from rich.console import Console

    with alone_in(options.out):
        return asyncio.run(_perform(options, options.faults() if faults is None else faults, Console()))


async def _perform(options: Options, faults: list[Fault], console: Console) -> int:
    from pccl.lab.ports import NoPortError
    from stress.conductor import Run
    from stress.lab.events import EventLog
    from stress.lab.processes import NurseryError

    interruption = Interruption()
    run = Run(options, faults)
    calm: list[Run] = []
    training = options.training()

    async def run_undisturbed() -> None:
        if options.baseline > 0 and not run.violations:
            calm.append(Run(options.undisturbed(), []))
            title = f"without faults, for {options.baseline / 2:.0f} s"
            await interruption.guard(_conduct(calm[-1], None, console, title))
            run.violations.extend(calm[-1].violations)

    async def run_disturbed(log: EventLog) -> None:
        if not run.violations:
            title = f"{options.peers} peers, seed {options.seed}, {len(faults)} faults in {options.seconds:.0f} s"
            if training is not None:
                title += f"; {training}"
            await interruption.guard(_conduct(run, log, console, title))

    cut_short = ""
    with EventLog(options.log) as log:
        try:
            log.write(
                "start",
                log.epoch,
                options=options.to_fields(),
                faults=[fault.to_fields() for fault in faults],
                training=str(training or ""),
                version=pccl.__version__,
                python=sys.version.split()[0],
            )
            await run_undisturbed()
            await run_disturbed(log)
            await run_undisturbed()  # the machine may have become busier, or less busy
        except (InterruptedRunError, NoPortError) as error:
            cut_short = str(error)
        except NurseryError as error:
            cut_short = f"{error}; the logs are in {options.out}"
        except OSError as error:
            cut_short = f"cannot write to {error.filename or options.out}: {error.strerror}"
        seconds = sum(one.lasted for one in calm)
        baseline = sum(one.counts["bytes"] for one in calm) / seconds if seconds else 0.0
        status = _conclude(run, baseline, cut_short, log, console)
    return 128 + interruption.number if interruption.number is not None else status


async def _conduct(run: Run, log: EventLog | None, console: Console, title: str) -> None:
    from stress.conductor import Conductor
    from stress.display import PlainDisplay

    with PlainDisplay(console, run, title) as display:
        await Conductor(run, run.options.out, log, display).conduct()


def _conclude(run: Run, baseline: float, cut_short: str, log: EventLog, console: Console) -> int:
    """Summary, picture, verdict."""
    from rich.text import Text

    from stress.display import outcome, print_summary, write_files

    found = outcome(run, baseline, cut_short)
    print_summary(console, run, found)
    try:
        log.write("end", log.epoch + run.lasted, outcome=found)
        write_files(run, found)
        console.print(
            Text(f"events in {run.options.log}; summary.json, summary.md and throughput.png in {run.options.out}"), soft_wrap=True
        )
    except OSError as error:
        cut_short = cut_short or f"cannot write to {error.filename or run.options.out}: {error.strerror}"
    if cut_short:
        console.print(Text(f"cut short: {cut_short}; all processes are stopped", style="yellow"), soft_wrap=True)
    passed = bool(found["passed"]) and not cut_short
    verdict = "PASSED" if passed else "FAILED" if run.violations else "CUT SHORT, nothing found until then"
    console.print(Text(verdict, style="bold green" if passed else "bold red" if run.violations else "yellow"))
    return 0 if passed else 1
