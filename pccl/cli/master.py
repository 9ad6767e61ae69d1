"""`pccl master` and `pccl_master`, where `pccl_command.native_master` has left the arguments to Python."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from pccl._host.processes import python
from pccl.lab.ranges import Range
from pccl.master import serve, serve_in_background
from pccl_command.native_master import HEARTBEAT_SECONDS, IDLE_SECONDS, SIGTERM_CHOICES, default_address


@click.command(
    "master",
    short_help="Run a master, or a standby.",
    epilog="Exit status: 0 ended by a signal or by --until-empty, 1 cannot listen, 2 wrong options.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--listen",
    "--listen-address",
    "listen",
    metavar="HOST:PORT",
    help="address to listen on; port 0: any free port  [default: 0.0.0.0:48148 with keys or --insecure, or else 127.0.0.1:48148]",
)
@click.option(
    "--heartbeat-limit",
    type=Range(*HEARTBEAT_SECONDS),
    metavar="SECONDS",
    help="seconds without a heartbeat after which a peer is declared dead  [default: PCCL_HEARTBEAT_LIMIT_MS, or 5]",
)
@click.option("--masters", metavar="HOST:PORT,...", help="all masters of the run, this one included; the first begins new runs")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="this master's entry in --masters, if peers reach it at an address that this machine does not have",
)
@click.option(
    "--on-sigterm",
    type=click.Choice(SIGTERM_CHOICES),
    help="detach: peers look for another master, or wait for this one to come back; end: the run ends  "
    "[default: PCCL_MASTER_ON_SIGTERM, or detach]",
)
@click.option(
    "--until-empty",
    type=Range(*IDLE_SECONDS),
    metavar="SECONDS",
    help="end once neither this master nor another one of the list has had a peer for so long",
)
@click.option(
    "--keys",
    type=click.Path(),
    metavar="FILE",
    help="encrypt with these keys, which `pccl keys` wrote for masters  [default: PCCL_KEYS]",
)
@click.option(
    "--cert", type=click.Path(), metavar="FILE", help="or with this certificate for a master, in PEM  [default: PCCL_CERT]"
)
@click.option("--key", type=click.Path(), metavar="FILE", help="with --cert: its private key  [default: PCCL_KEY]")
@click.option("--ca", type=click.Path(), metavar="FILE", help="with --cert: the authorities that are trusted  [default: PCCL_CA]")
@click.option(
    "--insecure",
    is_flag=True,
    help="without keys, listen beyond this host all the same: everybody who reaches the master can join the run and read its "
    "tensors  [default: PCCL_INSECURE=1]",
)
@click.option(
    "--web",
    metavar="HOST:PORT",
    help="also serve a page with the run, as `pccl web` does; it prints its address, with --background to the log",
)
@click.option("--background", is_flag=True, help="return once it listens; it goes on in a session of its own")
@click.option("--log", type=click.Path(), metavar="FILE", help="with --background: write the log there  [default: nowhere]")
def command(
    listen: str | None, masters: str | None, insecure: bool, web: str | None, background: bool, log: str | None, **given: Any
) -> None:
    """Run a master, or a standby, until Ctrl-C, which ends the run, or SIGTERM."""
    if log is not None and not background:
        raise click.UsageError("--log goes with --background; otherwise the log goes to standard error")
    if web is not None and background and log is None:
        raise click.UsageError("--web with --background needs --log FILE, to which it writes the address of the page")

    named: dict[str, str | None] = {name: given.pop(name) for name in ("keys", "cert", "key", "ca")}
    if not any(named.values()):
        named = {name: os.environ.get(f"PCCL_{name.upper()}") for name in named}
    # The folder may change before the files are read.
    paths = {name: os.path.abspath(path) if path else None for name, path in named.items()}

    address = listen or default_address(any(named.values()), insecure)

    page = None if web is None else _page_command(web, address, masters, paths, insecure)

    def serve_given(ready: Callable[[], None] = lambda: None) -> int:
        def begin() -> None:
            ready()  # first: the page must not keep open what the caller of --background reads to its end
            if page is not None:
                subprocess.Popen([*page, "--parent", str(os.getpid())], stdin=subprocess.DEVNULL)

        return serve(address, masters=masters, insecure=insecure, ready=begin, **{**given, **paths})

    sys.exit(serve_in_background(log, serve_given) if background else serve_given())


def _page_command(web: str, address: str, masters: str | None, paths: Mapping[str, str | None], insecure: bool) -> list[str]:
    """The command of a page for the run of these masters; it ends with the process that starts it. UsageError: there can be none.

    A standby's page asks the other masters, too, so it has the history from before a takeover.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise click.UsageError("--web needs prometheus_client, which is not installed: pip install 'pccl[web]'")
    from pccl.cli.web import page_address  # it needs rich, and masters do not

    page_address(web, "--web", False)
    host, _, port = address.rpartition(":")
    if port == "0":
        raise click.UsageError("--web needs to know the port of --listen: choose one")
    reached = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    own = f"{reached}:{port}"
    others = [one for one in (masters or "").split(",") if one and one not in (own, address)]
    words = python(
        "from pccl.cli import main; main(prog_name='pccl')", "web", "--master", ",".join([own, *others]), "--listen", web
    )
    for name, path in paths.items():
        words += [f"--{name}", path] if path else []
    return [*words, *(["--insecure"] if insecure else [])]
