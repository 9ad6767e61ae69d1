"""`pccl relay`: joins peers that cannot dial each other."""

from __future__ import annotations

import signal

import click

from pccl._core.address import parse_endpoint
from pccl._core.errors import PCCLError, Result
from pccl._run.relay import Relay
from pccl.cli import top


@click.command("relay", short_help="Join peers that cannot dial each other.")
@click.argument("address", metavar="HOST:PORT")
@top.access_options(keys="keys of the run that may use it (`pccl keys`)", insecure="let everybody use it; for runs without keys")
@click.option(
    "--links", default=1024, show_default=True, type=click.IntRange(1, 1 << 20), help="connections that it joins at most"
)
def command(address: str, access: top.Access, links: int) -> None:
    """Listen at HOST:PORT, and join the peers whose PCCL_RELAY names this address.

    It copies bytes, and knows neither the run's tensors nor its members: peers encrypt through it. Exit status: 1 if it cannot
    listen there, 2 for wrong options, 130 for Ctrl-C.
    """
    try:
        endpoint = parse_endpoint(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    named = access.or_environment().credentials
    if (named is None) != access.insecure:
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
