"""`pccl doctor`: what on this machine, or between it and a run, will stop pccl or slow it down, and what to do."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import functools
import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
from rich.table import Table
from rich.text import Text

import pccl
from pccl._core.address import parse_endpoints
from pccl._core.errors import ConnectError, PCCLError, reason_of
from pccl._core.library import _C
from pccl._core.names import rank_label
from pccl._watch.reports import Diagnosis
from pccl.cli import info, top, trial
from pccl_command.native_master import SIGTERM_CHOICES

DIAL_SECONDS = 3.0
"""For a connection to a member: longer than a lost first packet of a connection takes to be sent again."""

DIALS_AT_ONCE = 64

DESCRIPTORS = 4096
"""What a run of 1,024 members needs (docs/operations.md#ports)."""

OTHER_DESCRIPTORS = 124
"""What a peer needs beside one for each member, with a DataLoader or a few files of the program."""

FEW_DESCRIPTORS = 256

FIRST_PEER_PORT = 48149

WINDOW_BYTES = 4 << 20
"""Of one connection: with it, 64 of them fill 10 Gbit/s over 200 ms."""

KEYS_ADVICE = "give the keys of this run: --keys, or PCCL_KEYS"

TRIAL_ADVICE = "raise the limit that is named, or bring the loopback interface up: ip link set lo up"

CHOICES = {
    "PCCL_CUDA_REDUCE": ("gpu", "host"),
    "PCCL_JOIN": ("0", "1"),
    "PCCL_MASTER_ON_SIGTERM": SIGTERM_CHOICES,
    "PCCL_MEMBERSHIP": ("elastic", "fixed", "strict"),
    "PCCL_STRICT": ("0", "1"),
}
"""Values of variables that the library does not check when it starts."""

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


class Finding(NamedTuple):
    """What a check has found: `verdict` is "ok", "warning" or "problem"; `advice` is empty for "ok"."""

    check: str
    verdict: str
    seen: str
    advice: str = ""


def _finding(check: str, verdict: str, text: str, otherwise: str) -> Finding:
    """Returns a finding in the words of the library, whose advice follows a semicolon; `otherwise`: the advice if it has none."""
    seen, _, advice = text.partition("; ")
    return Finding(check, verdict, seen, advice or otherwise)


class Target(NamedTuple):
    """The run that is checked, and how it is reached."""

    masters: str | None
    access: top.Access


@click.command("doctor", short_help="Find what on this machine stops pccl or slows it down.")
@click.option(
    "--master",
    "address",
    metavar=top.MASTERS,
    help="also check the way to this run, and to each of its members  [default: PCCL_MASTER]",
)
@top.access_options()
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def command(address: str | None, access: top.Access, as_json: bool) -> None:
    """Check this machine: the build, settings, keys, ports, limits, clock and network, and say what to do.

    Two peers of this host make an all-reduce. With --master the command also asks the master, and dials the address that the
    master has of each member. Exit status: 1 if there is a problem, 0 if there is none; warnings do not count.
    """
    if address is not None:
        top.Masters(address)  # a wrong list ends the command here
    address = address or os.environ.get("PCCL_MASTER") or None
    target = Target(address, access.or_environment())
    findings = [finding for check in CHECKS for finding in check(target)]
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        top.standard_output().print(_table(findings))
    if any(finding.verdict == "problem" for finding in findings):
        raise click.exceptions.Exit(1)


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("seen, and what to do", overflow="fold")
    for finding in findings:
        text = Text(finding.seen)
        if finding.advice:
            text.append(f"\n{finding.advice}", "bold")
        table.add_row(finding.check, Text(finding.verdict, STYLES[finding.verdict]), text)
    return table


def _build(_target: Target) -> Iterator[Finding]:
    if _C.pccl_ext_has_tls():
        yield Finding("build", "ok", f"pccl {pccl.__version__}, with encryption")
    else:
        seen, _, advice = info.TLS_MISSING.partition(". ")
        yield Finding("build", "problem", f"pccl {pccl.__version__}, without encryption: {seen}", advice)
    lacking, _, advice = info.lz4_missing().partition(". ")
    if lacking:
        yield Finding("build", "warning", f"LZ4: {lacking}", advice)
    version = info.version_of("torch")
    if version is None:
        yield Finding("torch", "ok", "not installed; pccl.distributed and pccl.diloco need it")
        return
    from pccl._torch_backend import TESTED

    if ".".join(version.split(".")[:2]) in TESTED:
        yield Finding("torch", "ok", version)
    else:
        yield Finding(
            "torch", "warning", version, f"the backend of torch.distributed is tested with torch {' and '.join(TESTED)}"
        )


def _environment(_target: Target) -> Iterator[Finding]:
    """Reports environment variables with wrong values, those that the library reads later included."""
    known = info.environment()
    set_here = sorted(name for name in known if os.environ.get(name))
    wrong = list(_trial().settings)
    for name in set_here:
        choices = CHOICES.get(name)
        if choices and os.environ[name] not in choices:
            wrong.append(f"{name}={os.environ[name]} has no meaning; set it to {', '.join(choices[:-1])} or {choices[-1]}")
    try:
        parse_endpoints(os.environ.get("PCCL_MASTER") or "127.0.0.1:1")
    except (AssertionError, ValueError) as error:
        wrong.append(f"PCCL_MASTER: {error}")
    for text in wrong:
        verdict = "warning" if "is unknown and ignored" in text.partition("; ")[0] else "problem"
        yield _finding("environment", verdict, text, "docs/operations.md has what each variable means")
    if not wrong:
        yield Finding("environment", "ok", ", ".join(set_here) or "no variable of pccl is set")


@functools.cache
def _trial() -> trial.Trial:
    return trial.run()


def _reduce(_target: Target) -> Iterator[Finding]:
    """Reports whether two peers of this host can all-reduce."""
    tried = _trial()
    if tried.failure:
        yield _finding("trial", "problem", f"two peers of this host cannot reduce: {tried.failure}", TRIAL_ADVICE)
    else:
        yield Finding("trial", "ok", f"two peers of this host joined and reduced 1 MiB, in {tried.milliseconds:.0f} ms")
    for text in tried.warnings:
        yield _finding("trial", "warning", text, "docs/troubleshooting.md has causes")
    if not tried.keeps_events and not tried.warnings and not tried.failure:
        advice = "make room in /dev/shm (docker run --shm-size 64m), or set PCCL_EVENTS to a directory"
        yield Finding("trial", "warning", "no file can be made for the events of a process, which `pccl dump` shows", advice)


def _keys(target: Target) -> Iterator[Finding]:
    """By making a communicator, which reads what it is given and connects to nobody."""
    keys, cert, key, ca, insecure = target.access
    if not (keys or cert):
        trusts = insecure or os.environ.get("PCCL_INSECURE") == "1"
        advice = "" if trusts else "between machines a run needs some: `pccl keys RUN`"
        yield Finding("keys", "warning" if advice else "ok", "none", advice)
        return
    try:
        pccl.Communicator("127.0.0.1:1", keys=keys, cert=cert, key=key, ca=ca).close()
    except (PCCLError, ValueError, OSError) as error:
        yield _finding("keys", "problem", reason_of(error), "docs/security.md has how to make and copy them")
    else:
        yield Finding("keys", "ok", "they can be read")


def _ports(_target: Target) -> Iterator[Finding]:
    master = int(_C.CCOIP_PROTOCOL_PORT_MASTER)
    peer = next((port for port in range(FIRST_PEER_PORT, 1 << 16) if _is_free(port)), None)
    low, high = (int(word) for word in _read("/proc/sys/net/ipv4/ip_local_port_range", "32768 60999").split())
    if not _is_free(master):
        advice = "good if a master runs here; else start it with another one: `pccl master --listen HOST:PORT`"
        yield Finding("ports", "warning", f"{master}, that of masters, is in use", advice)
    elif low <= master <= high and not _is_in(master, _read("/proc/sys/net/ipv4/ip_local_reserved_ports", "")):
        advice = f"on the host of a master: sysctl -w net.ipv4.ip_local_reserved_ports={master}"
        yield Finding("ports", "warning", f"outgoing connections may take {master}, which lies in {low} to {high}", advice)
    else:
        yield Finding("ports", "ok", f"{master}, that of masters, is free")
    if peer is None:
        yield Finding("ports", "problem", f"none from {FIRST_PEER_PORT} on is free for a peer", "end what listens there")
    else:
        yield Finding("ports", "ok", f"the next peer of this machine listens on {peer}: its firewall must let others reach it")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


def _is_in(port: int, ranges: str) -> bool:
    """Whether a list such as "8080,9000-9010" has it."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and int(first) <= port <= int(last or first):
            return True
    return False


def _limits(_target: Target) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS:
        few = soft < FEW_DESCRIPTORS
        advice = f"{'' if few else 'for larger runs: '}ulimit -n {DESCRIPTORS}"
        if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
            advice += f"; first raise the hard limit of {hard}, as by docker run --ulimit nofile={DESCRIPTORS}"
        enough = "too few for a run" if few else f"enough for about {soft - OTHER_DESCRIPTORS} members"
        yield Finding("limits", "problem" if few else "warning", f"a process may have {soft} file descriptors, {enough}", advice)
    else:
        yield Finding("limits", "ok", f"{soft} file descriptors")
    try:
        os.close(os.memfd_create("pccl doctor", os.MFD_CLOEXEC))
    except OSError as error:
        advice = "snapshots need it, and peers of this host use TCP in place of shared memory; allow memfd_create"
        yield Finding("limits", "problem", f"memory files are refused: {error.strerror}", advice)


class _Timex(ctypes.Structure):
    """`struct timex` up to what is read of it; the rest, which the kernel writes too, has more than enough room."""

    _fields_ = (("modes", ctypes.c_uint), ("rest", ctypes.c_byte * 508))


_CLOCK_ERROR = 5


CLOCK_SECONDS = 86400.0
"""By which the clock may differ from what else tells the time: a hardware clock may run in local time."""


def _times() -> Iterator[tuple[str, float, bool]]:
    """What else tells the time: its name, seconds since 1970, and whether it tells the present; else the time is later."""
    package = Path(pccl.__file__).parent
    dates = [file.stat().st_mtime for file in package.iterdir() if file.is_file()]
    yield f"the date of {package}", max(dates, default=0.0), False
    for variable in ("PCCL_KEYS", "PCCL_CERT"):
        with contextlib.suppress(OSError):
            path = os.environ.get(variable) or ""
            yield f"the date of {path}", os.stat(path).st_mtime, False
    for clock in sorted(Path("/sys/class/rtc").glob("rtc*/since_epoch")):
        if told := _read(str(clock), ""):
            yield f"the hardware clock {clock.parent.name}", float(told), True


def _clock(_target: Target) -> Iterator[Finding]:
    """By files, which are no younger than the clock, the hardware clock, and `adjtimex`: whether a time service holds it."""
    now = time.time()
    for source, told, present in _times():
        behind = told - now
        if behind > CLOCK_SECONDS or (present and -behind > CLOCK_SECONDS):
            days = f"{abs(behind) / 86400:.0f} days {'behind' if behind > 0 else 'ahead'}"
            here = f"{time.strftime('%Y-%m-%d', time.gmtime(now))} here, {time.strftime('%Y-%m-%d', time.gmtime(told))} there"
            advice = "set the clock: certificates need the time, and logs of several hosts are compared by it"
            yield Finding("clock", "problem", f"this machine's clock is {days}, compared with {source}: {here}", advice)
            return
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(_Timex())) if hasattr(libc, "adjtimex") else -1
    if state == _CLOCK_ERROR:
        advice = "run chrony, ntpd or systemd-timesyncd: certificates need the time, and logs of several hosts are compared by it"
        yield Finding("clock", "warning", "no time service holds this machine's clock", advice)
    elif state >= 0:
        yield Finding("clock", "ok", "held by a time service")


def _network(_target: Target) -> Iterator[Finding]:
    wanted = os.environ.get("PCCL_CONGESTION_CONTROL") or "system"
    permitted = _read("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "").split()
    current = _read("/proc/sys/net/ipv4/tcp_congestion_control", "")
    if wanted != "system" and permitted and wanted not in permitted:
        allow = f"sysctl -w net.ipv4.tcp_allowed_congestion_control='{' '.join(permitted)} {wanted}'"
        advice = f"if the kernel has it, as root: modprobe tcp_{wanted}, and {allow}"
        seen = f"PCCL_CONGESTION_CONTROL={wanted}, and the kernel allows {', '.join(permitted)}"
        yield Finding("network", "problem", seen, advice)
    else:
        yield Finding("network", "ok", f"congestion control {current if wanted == 'system' else wanted}")
    for name, variable in (("receive", "tcp_rmem"), ("send", "tcp_wmem")):
        largest = int((_read(f"/proc/sys/net/ipv4/{variable}", "").split() or ["0"])[-1])
        if 0 < largest < WINDOW_BYTES:
            advice = f"for fast links between sites: sysctl -w net.ipv4.{variable}='4096 131072 {2 * WINDOW_BYTES}'"
            yield Finding("network", "warning", f"a connection may {name} {largest >> 10} KiB ahead", advice)
    if _read("/proc/sys/net/ipv4/tcp_window_scaling", "1") == "0":
        yield Finding("network", "problem", "windows are at most 64 KiB", "sysctl -w net.ipv4.tcp_window_scaling=1")


def _run(target: Target) -> Iterator[Finding]:
    """Asks each master by itself, and dials each member that the one that serves the run names."""
    if target.masters is None:
        return
    try:
        endpoints = parse_endpoints(target.masters)
        masters = [top.Masters(str(endpoint), target.access) for endpoint in endpoints]
    except (click.UsageError, AssertionError, ValueError):
        return  # the check of the keys tells, or that of the environment
    for endpoint, asked in zip(endpoints, masters, strict=True):
        master = str(endpoint)
        try:
            told = asked.ask()
        except ConnectError as error:
            seen, _, advice = error.detail.partition("; ")
            if "cannot be resolved" in seen:
                advice = advice or "check the name, and the name servers of this host (/etc/resolv.conf)"
            elif "unreachable" in seen:
                advice = advice or "check the address, and the routes of this host (ip route)"
            start = f"start `pccl master` there, or open TCP port {endpoint.port} in its firewall"
            advice = advice or (KEYS_ADVICE if "cannot be asked" in seen else start)
            yield Finding("master", "problem", seen, advice)
        except PCCLError as error:
            seen, _, advice = error.detail.partition("; ")
            seen = seen if master in seen else f"{master}: {seen}"
            yield Finding("master", "problem", seen, advice or KEYS_ADVICE)
        else:
            yield from _members(master, told) if top.has_members(told) else _no_run(master, asked)


def _no_run(master: str, asked: top.Masters) -> Iterator[Finding]:
    seen, advice = asked.why_no_run()
    yield Finding("master", "warning" if advice else "ok", f"{master}: {seen}", advice)


def _members(master: str, told: Diagnosis) -> Iterator[Finding]:
    if not told.members:
        yield Finding("master", "ok", f"{master} answers; members: {told.peer_count}")
        return
    yield Finding("master", "ok", f"{master} answers; members: {len(told.members)}")
    with concurrent.futures.ThreadPoolExecutor(DIALS_AT_ONCE) as pool:
        failures = list(pool.map(_dial, (member.address for member in told.members)))
    for member, failure in zip(told.members, failures, strict=True):
        if failure:
            advice = "open its port to this machine, unless it is behind NAT or names other addresses (docs/addresses.md)"
            yield Finding(
                "member", "warning", f"{rank_label(member.rank, member.name, member.uuid)} at {member.address}: {failure}", advice
            )
    if not any(failures):
        yield Finding("member", "ok", "all can be dialled from here")


def _dial(address: str) -> str:
    """Why it cannot be dialled; "" if it can."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), DIAL_SECONDS).close()
    except TimeoutError:
        return f"no answer within {DIAL_SECONDS:g} s, as behind a firewall"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error).lower()
    return ""


def _read(path: str, otherwise: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return otherwise


CHECKS: tuple[Callable[[Target], Iterator[Finding]], ...] = (
    _build, _environment, _keys, _ports, _limits, _clock, _network, _reduce, _run,
)  # fmt: skip
