"""`pccl keys`: makes, changes and describes the keys of a run."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pccl._core.errors import PCCLError
from pccl._run import keys as _keys

SHOW = "show"


def _describe(path: Path) -> None:
    role, keys = _keys.read_file(path)
    click.echo(f"{path}: for {role}s" + (f" of run {keys.run}" if keys.run else ""))
    for index, secret in enumerate(keys.secrets):
        age = "" if len(keys.secrets) == 1 else (" (older)", " (newer)")[index]
        click.echo(f"  secret         {_keys.secret_id(secret)}{age}")
    click.echo(f"  master's key   {_keys.fingerprint(keys.master_public)}")


def _files_of(name: str) -> list[Path]:
    found = [path for path in _keys.paths_of(name) if path.exists()]
    return found + [path for path, _ in _keys.files_of_runs(name)]


def _show(names: tuple[str, ...]) -> None:
    """Describes the files of the named runs, or files; without any, that of PCCL_KEYS."""
    if not names and not (names := tuple(filter(None, [os.environ.get("PCCL_KEYS")]))):
        raise click.UsageError("name a run or a key file: pccl keys show RUN")
    for name in names:
        found = [Path(name)] if Path(name).is_file() else _files_of(name)
        if not found:
            raise _keys.KeysError(f"none of {name}, {name}.master and {name}.peer exists")
        for path in found:
            _describe(path)


@click.command("keys", short_help="Make the keys that encrypt a run.")
@click.argument("names", nargs=-1, required=True, metavar="[show] NAME")
@click.option("--add", is_flag=True, help="add a second secret to the files of the run")
@click.option("--drop", is_flag=True, help="drop the older one of two secrets")
@click.option("--run", "one", metavar="RUN", help="write NAME-RUN.peer, which serves for this run of the masters alone")
def command(names: tuple[str, ...], add: bool, drop: bool, one: str | None) -> None:
    """Make the keys of a run: NAME.master for its masters, and NAME.peer for its peers.

    \b
      pccl keys run
      pccl master --listen 0.0.0.0:48148 --keys run.master
      PCCL_KEYS=run.peer python train.py

    With `--run bert`, peers of the run HOST:PORT/bert get a file of their own, NAME-bert.peer. Its holders cannot join, read or
    disturb other runs of the same masters. NAME.peer serves for all runs.

    All files have mode 0600. Copy them as you would copy a private key of ssh. `pccl keys show NAME` prints fingerprints, never
    secrets.

    To replace a secret in the middle of a run: run this command with `--add`, copy the files to all hosts, and restart the
    processes one by one. When all have the new files, do the same with `--drop`.
    """
    name, *more = names
    if add and drop:
        raise click.UsageError("--add and --drop are two steps: copy the files and restart all processes between them")
    change = "add" if add else "drop" if drop else None
    try:
        if name == SHOW:
            if change is not None or one is not None:
                raise click.UsageError(f"--{change or 'run'} cannot be used with `pccl keys show`")
            _show(tuple(more))
            return
        if more:
            raise click.UsageError(f"name one run: {name}, not also {' '.join(more)}")
        if one is None:
            _make(name, change)
        elif change is None:
            _make_of_run(name, one)
        else:
            raise click.UsageError(f"--{change} changes the files of all runs: leave --run out")
    except (_keys.KeysError, PCCLError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        if error.filename is None:  # of the output, not of a file
            raise
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None


def _names(name: str) -> str:
    """Returns the names of all files of a run, as in a sentence."""
    *names, last = map(str, _files_of(name))
    return f"{', '.join(names)} and {last}"


def _make_of_run(name: str, run: str) -> None:
    path, _ = _keys.write_run_file(name, run)
    click.echo(f"wrote {path} for peers of run {run} alone: keep it secret")
    click.echo(f"next: PCCL_KEYS={path} PCCL_MASTER=HOST:48148/{run} python train.py, on each host with a copy of {path.name}")


def _make(name: str, change: str | None) -> None:
    master, peer = _keys.paths_of(name)
    if change is None:
        _keys.write_files(name, _keys.new_keys())
        click.echo(f"wrote {master} for masters, and {peer} for peers: keep both secret")
        click.echo(f"next: pccl master --listen 0.0.0.0:48148 --keys {master}")
        click.echo(f"      PCCL_KEYS={peer} python train.py, on each host with a copy of {peer.name}")
        return
    if change == "add":
        keys = _keys.add_secret(name)
        click.echo(f"{_names(name)} have a second secret; in {master}: {_keys.secret_id(keys.secrets[1])}")
        click.echo(f"next: copy them to all hosts; when all processes have been started with them: pccl keys {name} --drop")
        return
    keys = _keys.drop_secret(name)
    click.echo(f"{_names(name)} have one secret; in {master}: {_keys.secret_id(keys.secrets[0])}")
    click.echo("next: copy them to all hosts, and restart the processes; until then they accept the older secret")
