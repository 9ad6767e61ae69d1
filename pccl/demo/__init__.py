"""`pccl demo`: a small transformer learns English on several peers; one of them is killed, and a new one joins."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import click

from pccl.lab.folder import make_writable

NEEDED = ("torch", "matplotlib", "rich")


@click.command(
    "demo",
    short_help="Train a small model, kill a peer, add a peer.",
    epilog="Exit status: 0 all checks hold, 1 a check fails, 2 wrong options or missing packages, 130 Ctrl-C.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--peers", type=click.IntRange(2, 64), default=3, show_default=True, help="peers at the start")
@click.option("--steps", type=click.IntRange(20), default=600, show_default=True, help="training steps")
@click.option("--kill-step", type=click.IntRange(2), help="step in which a peer is killed  [default: half of the steps]")
@click.option("--no-kill", is_flag=True, help="do not kill a peer")
@click.option(
    "--join-step", type=click.IntRange(2), help="step from which a new peer joins  [default: three quarters of the steps]"
)
@click.option("--no-join", is_flag=True, help="do not let a new peer join")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="seed of the weights and batches")
@click.option("--out", type=click.Path(path_type=Path), default="demo-out", show_default=True, help="folder for the results")
def command(
    peers: int, steps: int, kill_step: int | None, no_kill: bool, join_step: int | None, no_join: bool, seed: int, out: Path
) -> None:
    """Train a small model on real text with three peers, kill one of them, and let a new one join.

    The peers average their gradients. One is killed in the middle of the run, and the others continue. Later a new peer copies
    the weights, the optimizer, the random numbers and the step from the memory of the others. At the end all have the same
    state, bit for bit. The demo takes about a minute on two cores, and writes loss.png, summary.json and the logs of the peers.
    """
    kill = 0 if no_kill else kill_step or steps // 2
    join = 0 if no_join else join_step or min(3 * steps // 4, steps - 5)
    if (no_kill and kill_step) or (no_join and join_step):
        raise click.UsageError("--no-kill excludes --kill-step, and --no-join excludes --join-step")
    if kill > steps or (join and not kill < join <= steps - 5):
        raise click.UsageError(
            f"the kill (step {kill}), the join (step {join}) and the end (step {steps}) must follow each other"
        )
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise click.UsageError(f"the demo needs {', '.join(missing)}: pip install 'pccl[demo]'")
    try:
        make_writable(out)
    except OSError as error:
        raise click.UsageError(f"cannot write to {out}: {error.strerror}") from None
    from pccl.demo.run import Run

    run = Run(peers=peers, steps=steps, kill_step=kill, join_step=join, seed=seed, out=out)
    run.perform()
    if run.interrupted is not None:
        click.echo(f"stopped by {run.interrupted.name}; all peers have ended", err=True)
        sys.exit(128 + run.interrupted)
    if run.broken:
        raise click.ClickException(f"{run.broken}; the logs are in {out}")
    checks = list(run.checks())
    passed = all(holds for _, holds, _ in checks)
    run.plot(out / "loss.png")
    summary: dict[str, Any] = {
        "passed": passed,
        "checks": [{"claim": claim, "holds": holds, "detail": detail} for claim, holds, detail in checks],
        "kill_step": kill or None,
        "recovered_ms": [round(seconds * 1e3, 1) for seconds in run.recovered.values()],
        "join": run.joined or None,
        "digests": {peer.number: peer.state for peer in run.peers},
        "losses": [round(loss, 5) for loss in run.curve()],
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for told in list(run.finished.values())[:1]:
        click.secho(f"\nThe model continues {told['prompt']!r}:\n{told['prompt']}{told['sample']}\n", dim=True)
    for claim, holds, detail in checks:
        click.echo(f"{click.style('ok    ', 'green') if holds else click.style('FAILED', 'red')} {claim}: {detail}")
    click.echo(f"loss curve in {out / 'loss.png'}")
    click.secho("PASSED" if passed else "FAILED", fg="green" if passed else "red", bold=True)
    sys.exit(0 if passed else 1)
