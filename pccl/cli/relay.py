"""`pccl relay`: joins peers that cannot dial each other."""

from __future__ import annotations

import os
import signal

import click

from pccl._address import parse_endpoint
from pccl._credentials import credentials, environment_has_some
from pccl._errors import PCCLError, Result
from pccl._relay import Relay


@click.command("relay", short_help="Join peers that cannot dial each other.")
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--keys", type=click.Path(), metavar="FILE", help="keys of the run that may use it (`pccl keys`)  [default: PCCL_KEYS]"
)
@click.option("--cert", type=click.Path(), metavar="FILE", help="or a certificate of the run, in PEM  [default: PCCL_CERT]")
@click.option("--key", type=click.Path(), metavar="FILE", help="with --cert: its private key  [default: PCCL_KEY]")
@click.option("--ca", type=click.Path(), metavar="FILE", help="with --cert: the authorities that are trusted  [default: PCCL_CA]")
@click.option("--insecure", is_flag=True, help="let everybody use it; for runs without keys")
@click.option("--links", default=1024, show_default=True, type=click.IntRange(1), help="connections that it joins at most")
def command(
    address: str, keys: str | None, cert: str | None, key: str | None, ca: str | None, insecure: bool, links: int
) -> None:
    """Listen at HOST:PORT, and join the peers whose PCCL_RELAY names this address.

    It copies bytes, and knows neither the run's tensors nor its members: peers encrypt through it. Exit status: 1 if it cannot
    listen there, 2 for wrong options, 130 for Ctrl-C.
    """
    try:
        endpoint = parse_endpoint(address)
        if not (keys or cert or key or ca) and environment_has_some():
            keys, cert, key, ca = (os.environ.get(f"PCCL_{name}") or None for name in ("KEYS", "CERT", "KEY", "CA"))
        named = credentials(keys, cert, key, ca)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if (named is None) != insecure:
        raise click.UsageError("give --keys FILE or --cert FILE, so that only peers of the run can use the relay, or --insecure")
    try:
        relay = Relay(endpoint, named, links=links)
    except PCCLError as error:
        if error.result == Result.INVALID_ARGUMENT:
            raise click.UsageError(error.detail) from None
        raise click.ClickException(f"cannot listen at {address}: {error.detail}") from None
    except OSError as error:
        raise click.ClickException(f"cannot listen at {address}: {error}") from None
    with relay:
        click.echo(f"pccl relay listens at {endpoint.host}:{relay.port}")
        while True:
            signal.pause()
