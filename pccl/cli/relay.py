"""`pccl relay`: joins peers that cannot dial each other."""

from __future__ import annotations

import os

import click

from pccl._keys import KeysError, read_file
from pccl._relay import Relay, key_of


@click.command("relay", short_help="Join peers that cannot dial each other.")
@click.argument("address", metavar="HOST:PORT")
@click.option("--keys", metavar="FILE", help="keys of the run that may use it (`pccl keys`); default: PCCL_KEYS")
@click.option("--insecure", is_flag=True, help="let everybody use it; for runs without keys")
@click.option("--links", default=1024, show_default=True, type=click.IntRange(1), help="connections that it joins at most")
def command(address: str, keys: str | None, insecure: bool, links: int) -> None:
    """Listen at HOST:PORT, and join the peers whose PCCL_RELAY names this address.

    It copies bytes, and knows neither the run's tensors nor its members: peers encrypt through it. Exit status: 1 if it cannot
    listen there, 2 for wrong options, 130 for Ctrl-C.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise click.UsageError(f"{address} is not HOST:PORT, such as 0.0.0.0:48150")
    keys = keys or os.environ.get("PCCL_KEYS")
    if (keys is None) != insecure:
        raise click.UsageError("give --keys FILE, so that only members of the run can use the relay, or --insecure")
    try:
        secrets = None if keys is None else [key_of(secret) for secret in read_file(keys)[1].secrets]
    except KeysError as error:
        raise click.UsageError(str(error)) from None
    try:
        relay = Relay(host.strip("[]"), int(port), secrets, links=links)
    except OSError as error:
        raise click.ClickException(f"cannot listen at {address}: {error.strerror}") from None
    click.echo(f"pccl relay listens at {host}:{relay.port}")
    relay.run()
