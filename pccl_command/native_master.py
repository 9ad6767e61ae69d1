"""Starts the native program of a master, which listens before Python has imported what `pccl.master` needs.

It takes options that are right, and leaves everything else to `pccl.master`, which says what is wrong. It imports next to
nothing, because each module delays the start.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Endpoint = tuple[str, int, bytes | None]
    """The host as it is compared with others, the port, and the packed address unless the host is a name."""

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pccl", "spawned_master")
DEFAULT_PORT = 48148
SIGTERM_CHOICES = ("detach", "end")
MASTERS_MOST = 16
HEARTBEAT_SECONDS = (0.1, 3600.0)
IDLE_SECONDS = (0.001, 86400.0)
WITH_VALUE = ("--listen", "--heartbeat-limit", "--masters", "--advertise", "--on-sigterm", "--until-empty", "--log", "--keys")
WITH_CERTIFICATE = ("--cert", "--key", "--ca")
FLAGS = ("--background", "--insecure")


class UnsureError(Exception):
    """The arguments may be wrong: `pccl.master` has to look at them."""


def hand_over(program: str, arguments: Sequence[str]) -> None:
    """Becomes the native program, called `program`. Returns if this build has none, or if the arguments may be wrong."""
    if not os.access(PROGRAM, os.X_OK):
        return
    import _signal  # type: ignore[import-not-found] # `signal` costs ten times as much

    handler = _signal.getsignal(_signal.SIGINT)
    if handler is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # else Ctrl-C waits for the end of a look-up
    try:
        words, log = native_arguments(arguments)
        words += [] if log is None else ["--log", str(_open_log(log))]
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os.execv(PROGRAM, [program, *words])
    except (UnsureError, ImportError, OSError):
        if handler is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, handler)


def native_arguments(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Returns the arguments of the native program but --log, and the path of the log. Looks names up.

    UnsureError: `pccl.master` has to look at the arguments. OSError: a name cannot be resolved.
    """
    given = _read_options(arguments)
    listen = given.get("--listen") or default_address("--keys" in given or "--cert" in given, "--insecure" in given)
    own = _parse(listen)
    address = _look_up(own)
    words = ["--listen", _text(address, own[1]), "--host", listen.rpartition(":")[0]]
    advertised = _parse(given["--advertise"]) if "--advertise" in given else None
    if "--masters" in given:
        listed = [_parse(entry.strip()) for entry in given["--masters"].split(",")]
        names = {endpoint[:2] for endpoint in listed}
        _require(len(listed) == len(names) <= MASTERS_MOST and all(port > 0 for _, port in names))
        addresses = [(_look_up(endpoint), endpoint[1]) for endpoint in listed]
        place = _place(advertised or own, (address, own[1]), listed, addresses, advertised is None)
        words += ["--masters", ",".join(_text(*entry) for entry in addresses), "--place", str(place)]
    else:
        _require(advertised is None)
    for option, limits in (("--heartbeat-limit", HEARTBEAT_SECONDS), ("--until-empty", IDLE_SECONDS)):
        if option in given:
            words += [option, _milliseconds(given[option], *limits)]
    keys = [option for option in ("--keys", *WITH_CERTIFICATE) if option in given]
    _require(keys in ([], ["--keys"], list(WITH_CERTIFICATE)) and all(given[option] for option in keys))
    for option in keys:
        words += [option, given[option]]
    choice = given.get("--on-sigterm", os.environ.get("PCCL_MASTER_ON_SIGTERM") or "detach")
    _require(choice in SIGTERM_CHOICES)
    words += ["--end-on-sigterm"] if choice == "end" else []
    words += [flag for flag in FLAGS if flag in given]
    log = given.get("--log")
    _require(log is None or (log != "" and "--background" in given))
    return words, log


def default_address(has_keys: bool, insecure: bool) -> str:
    """Returns where a master listens that is not told where: without keys at loopback only, unless the user permits more."""
    has_keys = has_keys or any(os.environ.get(name) for name in ("PCCL_KEYS", "PCCL_CERT"))
    everywhere = has_keys or insecure or os.environ.get("PCCL_INSECURE") == "1"
    return f"{'0.0.0.0' if everywhere else '127.0.0.1'}:{DEFAULT_PORT}"


def _require(holds: bool) -> None:
    if not holds:
        raise UnsureError


def _read_options(arguments: Sequence[str]) -> dict[str, str]:
    given = {}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--listen-address":
            name = "--listen"
        if word not in FLAGS:
            _require(name in WITH_VALUE or name in WITH_CERTIFICATE)
            if not equals:
                value = next(words, "-")
                _require(not value.startswith("-"))
        given[name] = value
    return given


def _milliseconds(text: str, least: float, most: float) -> str:
    try:
        seconds = float(text)
    except ValueError:
        raise UnsureError from None
    _require(least <= seconds <= most)
    return str(round(seconds * 1000))


def _open_log(path: str) -> int:
    from pccl._host.files import open_log

    log = open_log(path)
    os.set_inheritable(log, True)
    return log


# ---- addresses, as in pccl._core.address ----


def _parse(text: str) -> Endpoint:
    import _socket

    host, _, port = text.rpartition(":")
    _require(port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535 and host.isascii())
    bracketed = host.startswith("[") and host.endswith("]")
    if not bracketed and host.strip("0123456789.") != "":
        _require(len(host) <= 253 and all(_is_label(label) for label in host.removesuffix(".").split(".")))
        return host, int(port), None
    family, literal = (_socket.AF_INET6, host[1:-1]) if bracketed else (_socket.AF_INET, host)
    packed = _socket.inet_pton(family, literal)  # OSError: it is none
    return _socket.inet_ntop(family, packed), int(port), packed


def _is_label(text: str) -> bool:
    return 1 <= len(text) <= 63 and text.replace("-", "a").replace("_", "a").isalnum() and "-" not in (text[0], text[-1])


def _look_up(endpoint: Endpoint) -> bytes:
    """Returns the first address of the host, packed."""
    import _socket

    host, port, packed = endpoint
    if packed is not None:
        return packed
    # Bytes avoid the codec for non-ASCII names, which Python imports for text.
    for family, _, _, _, address in _socket.getaddrinfo(host.encode(), port, 0, _socket.SOCK_STREAM):
        if family in (_socket.AF_INET, _socket.AF_INET6) and "%" not in str(address[0]):
            return _socket.inet_pton(family, str(address[0]))
    raise UnsureError


def _text(packed: bytes, port: int) -> str:
    import _socket

    if len(packed) == 4:
        return f"{_socket.inet_ntop(_socket.AF_INET, packed)}:{port}"
    return f"[{_socket.inet_ntop(_socket.AF_INET6, packed)}]:{port}"


def _place(
    name: Endpoint, own: tuple[bytes, int], listed: Sequence[Endpoint], addresses: Sequence[tuple[bytes, int]], by_address: bool
) -> int:
    """Returns which of the masters this one is: the one called `name`, or else the only one at its own address."""
    names = [endpoint[:2] for endpoint in listed]
    if name[:2] in names:
        return names.index(name[:2])
    _require(by_address and own[1] != 0)
    found = [
        position
        for position, (packed, port) in enumerate(addresses)
        if port == own[1] and (packed == own[0] or (not any(own[0]) and is_of_this_machine(packed)))
    ]
    _require(len(found) == 1)
    return found[0]


def is_of_this_machine(packed: bytes) -> bool:
    """Whether this machine has that address: one can bind to no other."""
    import _socket

    family = _socket.AF_INET if len(packed) == 4 else _socket.AF_INET6
    probe = _socket.socket(family, _socket.SOCK_DGRAM)
    try:
        probe.bind((_socket.inet_ntop(family, packed), 0))
    except OSError:
        return False
    finally:
        probe.close()
    return True
