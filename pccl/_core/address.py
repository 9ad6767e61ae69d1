"""Addresses as text, and what they resolve to."""

from __future__ import annotations

import ipaddress
import os
import re
import threading

from pccl._core.calls import Deadline
from pccl._core.errors import ArgumentError, PCCLError
from pccl._core.library import _C, _ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?"

RUN_NAME = r"[A-Za-z0-9._-]{1,64}"

MASTERS_MAX = 16
"""Masters of one run."""

IP = ipaddress.IPv4Address | ipaddress.IPv6Address


class Endpoint:
    """`host:port/run` as it was given: a literal address, or a name that is looked up when it is needed.

    `run` is the name of one of the master's runs; "": the run without a name. Endpoints of one master are equal.
    """

    __slots__ = ("host", "literal", "port", "run")

    def __init__(self, host: str, port: int, literal: IP | None, run: str = "") -> None:
        self.host = host
        self.port = port
        self.literal = literal
        self.run = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Endpoint) and (self.host, self.port) == (other.host, other.port)

    def __hash__(self) -> int:
        return hash((self.host, self.port))

    def __str__(self) -> str:
        run = f"/{self.run}" if self.run else ""
        return f"[{self.host}]:{self.port}{run}" if ":" in self.host else f"{self.host}:{self.port}{run}"


def parse_endpoint(address: str) -> Endpoint:
    """Reads `host:port`, `1.2.3.4:port` or `[ipv6]:port`, and the name of a run behind it, as in `host:port/run`.

    ArgumentError: bad syntax.
    """
    _require_text(address)
    if "://" in address:
        raise ArgumentError(f"address {address!r} is a URL; write only host:port")
    place, slash, run = address.partition("/")
    if slash and not re.fullmatch(RUN_NAME, run, re.ASCII):
        text = f"address {address!r} has an invalid name of a run, {run!r}"
        raise ArgumentError(f"{text}; write 1 to 64 letters, digits, dots, hyphens and underscores behind host:port/")
    if re.fullmatch(r"[0-9]{1,5}", place, re.ASCII):
        raise ArgumentError(f"address {address!r} has no host; write 0.0.0.0:{place} to listen, or host:{place} to connect")
    if ":" not in place:
        raise ArgumentError(f"address {address!r} has no port; write it as host:port, 1.2.3.4:port or [ipv6]:port")
    host, _, port_text = place.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port_text, re.ASCII) or int(port_text) > 65535:
        raise ArgumentError(f"address {address!r} has the invalid port {port_text!r}; write a number from 0 to 65535")
    literal = _parse_literal(host, address)
    return Endpoint(str(literal) if literal else host, int(port_text), literal, run)


def run_address(given: str | None) -> str:
    """Returns the address that a program gives, or that of PCCL_MASTER for None. ArgumentError: there is neither."""
    address = (os.environ.get("PCCL_MASTER") or None) if given is None else given
    if address is None:
        raise ArgumentError("the address of the master is missing; pass host:port, or set PCCL_MASTER")
    return address


def parse_endpoints(addresses: str) -> list[Endpoint]:
    """Reads a list as in `a:48148,b:48148`: at most 16, none twice, each with the port it listens on.

    The name of a run stands behind the last one, or behind each of them: `a:48148,b:48148/run`.
    """
    _require_text(addresses)
    if "," in addresses and not all(address.strip() for address in addresses.split(",")):
        raise ArgumentError(f"the list of masters {addresses!r} has an entry without host and port; write host:port,host:port")
    endpoints = [parse_endpoint(address.strip()) for address in addresses.split(",")]
    for endpoint in endpoints:
        if endpoint.port == 0:
            raise ArgumentError(f"address {str(endpoint)!r} has port 0; write the port on which the master listens")
    if len(endpoints) > MASTERS_MAX or len(set(endpoints)) < len(endpoints):
        raise ArgumentError(f"addresses {addresses!r} must name at most {MASTERS_MAX} masters, each once")
    named = endpoints[-1].run
    if any(endpoint.run not in ("", named) for endpoint in endpoints):
        raise ArgumentError(f"addresses {addresses!r} name several runs; write one name behind the last address: a:1,b:1/run")
    for endpoint in endpoints:
        endpoint.run = named
    return endpoints


def without_run(endpoints: list[Endpoint]) -> list[Endpoint]:
    """Returns these addresses of masters. ArgumentError: they name a run."""
    for endpoint in endpoints:
        if endpoint.run:
            text = f"address '{endpoint}' names a run, and a master serves runs of all names"
            raise ArgumentError(f"{text}; give the name to the peers only")
    return endpoints


def _require_text(address: object) -> None:
    if not isinstance(address, str):
        raise TypeError(f"an address must be a str such as 'host:48148', not {address!r}")


def _parse_literal(host: str, address: str) -> IP | None:
    if host.startswith("[") and host.endswith("]"):
        try:
            if "%" in host:
                raise ValueError("an IPv6 zone is not supported")
            return ipaddress.IPv6Address(host[1:-1])
        except ValueError as error:
            raise ArgumentError(f"address {address!r} has an invalid IPv6 host: {error}") from None
    if ":" in host:
        raise ArgumentError(f"address {address!r} is ambiguous; write an IPv6 address in brackets, as in [::1]:48148")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            return ipaddress.IPv4Address(host)
        except ValueError as error:
            raise ArgumentError(f"address {address!r} has an invalid IPv4 host: {error}") from None
    if len(host) > 253 or not re.fullmatch(_NAME, host):
        raise ArgumentError(f"address {address!r} has the invalid host {host!r}; write a name or an IP address")
    return None


def resolve(endpoint: Endpoint, deadline: Deadline) -> list[IP]:
    """All addresses of the host, in the system's order.

    OSError: the name cannot be resolved; TimeoutError: not by the deadline. The look-up runs in a thread of its own,
    because nothing can interrupt it.
    """
    if endpoint.literal is not None:
        return [endpoint.literal]
    import socket

    found: list[Any] = []
    done = threading.Event()

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.append(error)
        except UnicodeError as error:  # the name cannot be encoded
            found.append(OSError(str(error)))
        finally:
            done.set()

    threading.Thread(target=look_up, name="pccl:resolve", daemon=True).start()
    if not done.wait(deadline.remaining()):
        raise TimeoutError(f"name {endpoint.host} was not resolved in time")
    if found and isinstance(found[0], OSError):
        raise found[0]
    hosts = (entry[4][0] for entry in found if entry[0] in (socket.AF_INET, socket.AF_INET6) and "%" not in entry[4][0])
    addresses = list(dict.fromkeys(ipaddress.ip_address(host) for host in hosts))
    if not addresses:
        raise OSError(f"{endpoint.host} has no usable address")
    return addresses


def is_loopback(host: str) -> bool:
    """Whether what listens there is reached from this host only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def permitted(endpoint: Endpoint, addresses: list[IP], keys: Any, insecure: bool, name: str) -> list[IP]:
    """Returns the addresses of a master that a process with these settings may talk to: without keys, those of loopback.

    `keys`: what `credentials` returns, or NULL for the environment's. PCCLError (INVALID_ARGUMENT) of the call `name`: none.
    """
    found = []
    refusal: PCCLError | None = None
    for ip in addresses:
        try:
            PCCLError.check(_C.pccl_ext_permits(fill_socket_addresses([(ip, endpoint.port)]), keys, insecure), name)
            found.append(ip)
        except PCCLError as error:
            refusal = refusal or error
    if refusal is not None and not found:
        raise refusal
    return found


def fill_socket_address(out: Any, ip: IP, port: int) -> None:
    """Writes a `ccoip_socket_address_t`."""
    out.port = port
    if ip.version == 4:
        out.inet.protocol = _C.inetIPv4
        _ffi.memmove(out.inet.ipv4.data, ip.packed, 4)
    else:
        out.inet.protocol = _C.inetIPv6
        _ffi.memmove(out.inet.ipv6.data, ip.packed, 16)


def fill_socket_addresses(addresses: list[tuple[IP, int]]) -> Any:
    """A new array of `ccoip_socket_address_t`."""
    out = _ffi.new("ccoip_socket_address_t[]", len(addresses))
    for position, (ip, port) in enumerate(addresses):
        fill_socket_address(out[position], ip, port)
    return out
