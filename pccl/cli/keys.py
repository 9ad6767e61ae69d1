"""`pccl keys`: makes, changes and describes the keys of a run."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pccl import _keys
from pccl._errors import PCCLError

SHOW = "show"


def _describe(path: Path) -> None:
    role, keys = _keys.read_file(path)
    click.echo(f"{path}: for {role}s")
    for index, secret in enumerate(keys.secrets):
        age = "" if len(keys.secrets) == 1 else (" (older)", " (newer)")[index]
        click.echo(f"  secret         {_keys.secret_id(secret)}{age}")
    click.echo(f"  master's key   {_keys.fingerprint(keys.master_public)}")


def _show(names: tuple[str, ...]) -> None:
    """Describes the files of the named runs, or files; without any, that of PCCL_KEYS."""
    if not names and not (names := tuple(filter(None, [os.environ.get("PCCL_KEYS")]))):
        raise click.UsageError("name a run or a key file: pccl keys show RUN")
    for name in names:
        found = [Path(name)] if Path(name).is_file() else [path for path in _keys.paths_of(name) if path.exists()]
        if not found:
            raise _keys.KeysError(f"none of {name}, {name}.master and {name}.peer exists")
        for path in found:
            _describe(path)


@click.command("keys", short_help="Make the keys that encrypt a run.")
@click.argument("names", nargs=-1, required=True, metavar="[show] NAME")
@click.option("--add", "change", flag_value="add", help="add a second secret to the files of the run")
@click.option("--drop", "change", flag_value="drop", help="drop the older one of two secrets")
def command(names: tuple[str, ...], change: str | None) -> None:
    """Make the keys of a run: NAME.master for its masters, and NAME.peer for its peers.

    \b
      pccl keys run
      pccl master --listen 0.0.0.0:48148 --keys run.master
      PCCL_KEYS=run.peer python train.py

    Both files have mode 0600. Copy them as you would copy a private key of ssh. `pccl keys show NAME` prints fingerprints, never
    secrets.

    To replace a secret in the middle of a run: run this command with `--add`, copy both files to all hosts, and restart the
    processes one by one. When all have the new files, do the same with `--drop`.
    """
    name, *more = names
    try:
        if name == SHOW:
            if change is not None:
                raise click.UsageError(f"--{change} cannot be used with `pccl keys show`")
            _show(tuple(more))
            return
        if more:
            raise click.UsageError(f"name one run: {name}, not also {' '.join(more)}")
        _make(name, change)
    except (_keys.KeysError, PCCLError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or name}: {error.strerror}") from None


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
        click.echo(f"{master} and {peer} have a second secret, {_keys.secret_id(keys.secrets[1])}")
        click.echo(f"next: copy them to all hosts; when all processes have been started with them: pccl keys {name} --drop")
        return
    keys = _keys.drop_secret(name)
    click.echo(f"{master} and {peer} have one secret, {_keys.secret_id(keys.secrets[0])}")
    click.echo("next: copy them to all hosts; processes with only the older secret can no longer connect")
