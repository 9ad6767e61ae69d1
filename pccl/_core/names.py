"""How texts call peers: by their names, which several may share, and the first eight digits of their uuids."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar
from uuid import UUID

from pccl._core.calls import NativeHandle, call
from pccl._core.errors import ArgumentError, PCCLError
from pccl._core.library import _ffi

Record = TypeVar("Record")

NAME_BYTES = 64
"""A name and the zero behind it."""


def check_name(name: str) -> bytes:
    """Returns a name as C takes it. ValueError: nothing could be called so."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, not {type(name).__name__}")
    encoded = name.encode("utf-8", "surrogatepass")
    if not 1 <= len(encoded) < NAME_BYTES or not name.isprintable() or name != name.strip():
        raise ArgumentError(f"name must have 1 to 63 bytes of printable UTF-8 and no space at an end, not {name!r}")
    return encoded


def name_of(handle: NativeHandle, uuid: UUID) -> str:
    """Returns the name of a member, or of one that was lost not long ago.

    "" for a peer that is not known or has no name, and after `close`: a text without a name is better than none.
    """
    c_uuid = _ffi.new("pcclRankUuid_t *", (list(uuid.bytes),))
    out = _ffi.new("char[]", NAME_BYTES)
    with contextlib.suppress(PCCLError):
        call(handle, "pccl_ext_peer_name", c_uuid, out, NAME_BYTES)
    return text_of(out)


def text_of(chars: object) -> str:
    """Returns a text of C with names in it, which may be cut inside a character."""
    text: bytes = _ffi.string(chars)
    return text.decode("utf-8", "replace")


def uuid_in(c_uuid: Any) -> UUID:
    """Returns a `pcclRankUuid_t` as a UUID."""
    return UUID(bytes=bytes(_ffi.buffer(c_uuid.data)))


def read_struct(kind: type[Record], c: Any, **known: Any) -> Record:
    """Makes a dataclass of a C struct: fields that are not in `known` are called alike there, but `_s` for `_seconds`."""
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in known:
            value = getattr(c, field.name.replace("_seconds", "_s"))
            known[field.name] = value if isinstance(value, int | float) else text_of(value)
    return kind(**known)


def short(uuid: UUID) -> str:
    """Returns what logs and findings call a peer, "ab12cdef"."""
    return uuid.hex[:8]


def peer_label(name: str, uuid: UUID) -> str:
    """Returns "host-a (ab12cdef)", or "ab12cdef" for a peer without a name."""
    return f"{name} ({short(uuid)})" if name else short(uuid)


def rank_label(rank: int, name: str, uuid: UUID) -> str:
    """Returns "rank 3 (host-a, ab12cdef)", or "rank 3 (ab12cdef)"."""
    return f"rank {rank} ({name}, {short(uuid)})" if name else f"rank {rank} ({short(uuid)})"


def label_in(comm: Any, rank: int) -> str:
    """Returns what `rank_label` does for the peer of a communicator itself."""
    return rank_label(rank, name_of(comm._handle, comm.uuid), comm.uuid)


def with_ranks(text: str, members: Sequence[UUID], names: Mapping[UUID, str]) -> str:
    """Returns a text of C with ranks in place of "peer": "rank 3 (host-a, ab12cdef)"."""
    for rank, member in enumerate(members):
        digits = short(member)
        if digits not in text:
            continue
        if names.get(member):
            text = text.replace(f"peer {names[member]} ({digits}", f"rank {rank} ({names[member]}, {digits}")
        text = text.replace(f"peer {digits}", f"rank {rank}")
        text = re.sub(rf"(?<={digits}), rank \d+(, join \d+)?(?=\))", "", text)  # that in the run
        text = re.sub(rf"(?<=rank {rank}) \(rank \d+(, join \d+)?\)", "", text)
    return text


def with_names(text: str, labels: Mapping[int, str]) -> str:
    """Returns a text with labels in place of "rank 3"."""
    return re.sub(r"\brank (\d+)\b(?! \()", lambda found: labels.get(int(found[1]), found[0]), text)
