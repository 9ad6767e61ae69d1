"""`pccl web`: a page with the members, links and history of a run. `pccl replay`: the same of a file of events."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import signal
import threading
import time
from collections.abc import Callable
from typing import IO

import click

from pccl._core.address import Endpoint, is_loopback, parse_endpoint
from pccl._core.errors import ConnectError, PCCLError
from pccl._host.processes import die_with_parent
from pccl._run import keys
from pccl.cli import top
from pccl.cli.remove import find
from pccl.lab.ranges import Range
from pccl.monitor.history import Log, Recorder, create_file, read_file, wall_clock
from pccl.monitor.server import Page, new_token

LISTEN = "127.0.0.1:8080"

UNENCRYPTED = (
    "the page only shows: with --public its tokens travel unencrypted. To drain and expel members, leave out --public and use "
    "`ssh -L`, or let a proxy with TLS pass requests on and add --behind-tls"
)

listen_option = click.option(
    "--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, help="where browsers connect; port 0: any free one"
)
public_option = click.option(
    "--public", is_flag=True, help="listen beyond this host all the same: the token and the page travel unencrypted"
)


@click.command("web", short_help="Show a run in a browser, with its history and metrics.")
@top.master_option("master of the run, or all masters, as the peers name them")
@listen_option
@click.option("--interval", type=Range(0.2, 3600), default=1.0, show_default=True, help="seconds between two questions")
@click.option(
    "--events", type=click.Path(), metavar="FILE", help="also write the events there, for `pccl replay`; it must not exist"
)
@public_option
@click.option("--behind-tls", is_flag=True, help="with --public: a proxy in front encrypts, so the page may act, too")
@top.access_options()
@click.option("--parent", type=int, hidden=True, help="end when this process ends")
def command(
    address: str,
    listen: str,
    interval: float,
    events: str | None,
    public: bool,
    behind_tls: bool,
    access: top.Access,
    parent: int | None,
) -> None:
    """Show a run in a browser: its members, links, findings and history, and metrics for Prometheus at /metrics.

    It prints an address with a token; whoever has it sees the page. With a file of keys the token is made from them and stays the
    same, else it is a new one each time. The token of the second address, whose page can drain and expel members, is always new.
    docs/monitoring.md explains the page and the metrics, docs/event-files.md the events.
    """
    from pccl.monitor.metrics import Metrics  # of an optional package

    if parent is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the master that has started this process
        die_with_parent(parent, signal.SIGTERM)
    masters = top.Masters(address, access)
    log, recorder, metrics, clock = Log(), Recorder(), Metrics(), wall_clock()
    token, act_token = _tokens(access)
    act = _actor(top.Masters(address, access), log, clock) if act_token and (behind_tls or not public) else None
    page = _serve(listen, log, lambda: (metrics.text(), metrics.content_type), token, public, act, act_token, behind_tls)
    with contextlib.nullcontext() if events is None else _created(events) as log.file:
        click.echo(page.url)
        if page.act_url:
            click.echo(f"to drain and expel members, and to see their stacks: {page.act_url}")
        elif act_token:
            click.echo(UNENCRYPTED, err=True)
        silent: bool | None = None
        missed = ""
        while True:
            at = clock()
            try:
                told = masters.ask()
            except PCCLError as error:
                if silent is None and not isinstance(error, ConnectError):  # the keys: they cannot be used, or are missing
                    raise click.UsageError(error.detail) from None
                if not silent:
                    click.echo(f"{error.detail}: asking again", err=True)
                silent = True
                found = recorder.silence(at, error.detail)
                metrics.observe(None, found)
            else:
                silent = False
                why = "" if top.has_members(told) else masters.no_run()
                if why not in ("", missed):
                    click.echo(f"{why}; asking again", err=True)
                missed = why
                found = recorder.observe(at, told)
                metrics.observe(told, found)
            try:
                log.add(found)
            except OSError as error:
                click.echo(f"--events: {events} cannot be written any more: {error.strerror}; the page continues", err=True)
                log.file = None
                log.add(found)
            time.sleep(max(0.0, at + interval - clock()))


@click.command("replay", short_help="Show a run that has ended in a browser, from a file of events.")
@click.argument("file")
@listen_option
@public_option
def replay(file: str, listen: str, public: bool) -> None:
    """Show what `pccl web --events FILE` has written, as the page showed it then."""
    log = Log(most_bytes=1 << 40)
    try:
        log.add(read_file(file))
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    page = _serve(listen, log, None, new_token(), public)
    click.echo(page.url)
    while True:
        time.sleep(3600)


def _created(path: str) -> IO[bytes]:
    try:
        return create_file(path)
    except FileExistsError:
        raise click.UsageError(f"--events: {path} exists; name a new file") from None
    except OSError as error:
        raise click.UsageError(f"--events: {path} cannot be written: {error.strerror}") from None


Actor = Callable[[str, str], tuple[bool, str]]


def _actor(masters: top.Masters, log: Log, clock: Callable[[], float]) -> Actor:
    """What the page does to members, from any of its threads; events tell of it."""
    lock = threading.Lock()

    def act(action: str, member: str) -> tuple[bool, str]:
        try:
            with lock:
                found = find(masters.ask().members, member)
                if found is None:
                    return False, f"{member} is no member of the run any more\n"
                if action != "stacks":
                    masters.remove(found.uuid, at_update=action == "drain", reason="by a button of pccl web")
            if action == "stacks":
                return True, masters.stacks(found.uuid)
        except PCCLError as error:
            return False, f"{error.detail}\n"
        with contextlib.suppress(OSError):
            log.add([{"at": clock(), "kind": "acted", "action": action, "member": member}])
        return True, "done\n"

    return act


def _serve(
    listen: str,
    log: Log,
    metrics: Callable[[], tuple[bytes, str]] | None,
    token: str,
    public: bool,
    act: Actor | None = None,
    act_token: str = "",
    behind_tls: bool = False,
) -> Page:
    endpoint = page_address(listen, "--listen", public)
    try:
        page = Page((endpoint.host, endpoint.port), log, metrics, token, act, act_token, secure=behind_tls)
    except OSError as error:
        raise click.ClickException(f"the page cannot listen on {listen}: {error.strerror or error}") from None
    threading.Thread(target=page.serve_forever, daemon=True).start()
    return page


def page_address(listen: str, option: str, public: bool) -> Endpoint:
    """Reads where a page is to listen. UsageError, which names the option: it is no address, or others would reach it."""
    try:
        endpoint = parse_endpoint(listen)
    except (AssertionError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint=option) from None
    if public or is_loopback(endpoint.host):
        return endpoint
    raise click.UsageError(
        f"{option} {listen} is reached from other hosts, and the page is not encrypted: listen on 127.0.0.1 and use `ssh -L`, or "
        "give `pccl web` the option --public"
    )


def _tokens(access: top.Access) -> tuple[str, str]:
    """Returns the token of the page, which each can make who has the file of keys, if there is one, and a new one of actions.

    "": these are no keys of masters, and the page only shows.
    """
    path = access.or_environment().keys
    if not path:
        return new_token(), ""
    try:
        found = keys.read_file(path)[1]
    except (OSError, PCCLError, keys.KeysError) as error:
        raise click.UsageError(str(error)) from None
    see = hmac.new(found.secrets[0], b"pccl web", hashlib.sha256).hexdigest()[:40]
    return see, "" if found.master_key is None else new_token()
