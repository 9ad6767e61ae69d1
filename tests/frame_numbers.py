"""Frames: the wire version, the header, and the numbers of types, as csrc/net/wire.h has them."""

import re
import socket
import struct
from pathlib import Path

_HEADER = (Path(__file__).parents[1] / "csrc/net/wire.h").read_text()


def _types() -> dict[str, int]:
    """Returns the number of each type of frame, by its name without WIRE_."""
    numbers: dict[str, int] = {}
    following = 0
    for name, number in re.findall(r"^    WIRE_(\w+)(?: = (\d+))?,", _HEADER.partition("enum wire_type {")[2], re.MULTILINE):
        following = int(number or following)
        numbers[name] = following
        following += 1
    return numbers


def _version() -> int:
    found = re.search(r"WIRE_VERSION = (\d+)", _HEADER)
    assert found is not None
    return int(found[1])


VERSION = _version()
TYPES = _types()


HEADER = struct.Struct("<I2sHQQQ")
"""Length of the body, "PC", type, and three names."""


def read(stream: socket.socket, size: int) -> bytes:
    """Reads exactly `size` bytes."""
    content = b""
    while len(content) < size:
        more = stream.recv(size - len(content))
        assert more, "the other end closed the connection"
        content += more
    return content


def hello_body(own: bytes, port: int = 1, version: int = VERSION) -> bytes:
    """A HELLO of a peer without a name and addresses of its own, whose limits of members are the default."""
    return struct.pack("<H16sIIHBBHHI19s3s", version, own, 0, 4, port, 1, 0, 0, 0, 600_000, b"", b"")
