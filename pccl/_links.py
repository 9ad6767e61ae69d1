"""What the links of a communicator are like: `Communicator.links` (docs/decisions/far-links.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pccl._calls import NativeHandle, call
from pccl._exports import publish
from pccl._loader import load_native_module
from pccl._names import rank_label, text_of

_ffi, _C = load_native_module()


@dataclass(frozen=True, kw_only=True)
class Link:
    """All connections of this peer to one other member of its group, together.

    One of them, the direct connection, is there for each two members. Neighbours in the ring have more, called lanes. Sums are
    over the connections there are, since each was made; a number that the kernel does not tell is 0.
    """

    uuid: UUID  # of the other member
    address: str  # where other members reach it
    rank: int  # of the other member, in the group
    connected: bool  # False: the connection is being made again
    by_memory: bool  # a process of this host: large tensors go through memory, and little by connections, which have no rate
    far: bool  # the round trip is 2 ms or longer, and the number of lanes in use is tuned
    lanes: int  # that were made
    lanes_in_use: int  # of these, those that carry large tensors; none if these go through memory
    congestion_control: str  # of the connections, as the kernel calls it: "cubic"; empty: unknown
    shortest_round_trip_seconds: float  # the shortest of late
    round_trip_seconds: float  # now, with the queues on the way: the mean of the connections in use
    bytes_per_second: float  # that were sent and acknowledged in the last second of ops
    acked_bytes: int  # that were sent and acknowledged, sum
    retransmitted_share: float  # of the segments that were sent, those that were sent again, 0 to 1
    busy_seconds: float  # with bytes to send or on their way, sum
    window_limited_seconds: float  # of these, while the receive window of the other side was full
    buffer_limited_seconds: float  # of these, while the own send buffer was full
    limit_bytes_per_second: float  # that the lanes together may send at most, so that no long queue stays; 0: as fast as they can
    reason: str  # why so many lanes are in use
    name: str = ""  # what logs call the other member; empty: it has none

    @property
    def lanes_spare(self) -> int:
        """Lanes that were made and do not carry large tensors now."""
        return self.lanes - self.lanes_in_use

    def __str__(self) -> str:
        if self.by_memory:
            return f"{rank_label(self.rank, self.name, self.uuid)}: {self.reason}"
        lanes = f"{self.lanes_in_use} of {self.lanes} lanes" if self.lanes else "no lanes"
        return (
            f"{rank_label(self.rank, self.name, self.uuid)}: {lanes}, {self.congestion_control or 'unknown'}, "
            f"{self.shortest_round_trip_seconds * 1e3:.1f} ms, {self.bytes_per_second * 8e-6:.0f} Mbit/s: {self.reason}"
        )


def links_of(handle: NativeHandle) -> tuple[Link, ...]:
    """One for each other member of the group, by rank."""
    out = _ffi.new("struct pccl_links **")
    call(handle, "pccl_ext_links", out, name="links")
    try:
        links = [_link(out[0].links[i]) for i in range(out[0].count)]
    finally:
        _C.pccl_ext_links_free(out[0])
    return tuple(sorted(links, key=lambda link: link.rank))


def _link(c: Any) -> Link:
    return Link(
        uuid=UUID(bytes=bytes(_ffi.buffer(c.uuid.data))),
        name=text_of(c.name),
        address=_ffi.string(c.address).decode(),
        rank=c.rank,
        connected=c.connected,
        by_memory=c.by_memory,
        far=c.far,
        lanes=c.lanes,
        lanes_in_use=c.in_use,
        congestion_control=_ffi.string(c.congestion).decode(),
        shortest_round_trip_seconds=c.shortest_s,
        round_trip_seconds=c.round_trip_s,
        bytes_per_second=c.bytes_per_s,
        acked_bytes=int(c.acked_bytes),
        retransmitted_share=min(c.retransmits / c.segments, 1.0) if c.segments else 0.0,
        busy_seconds=c.busy_s,
        window_limited_seconds=c.window_s,
        buffer_limited_seconds=c.buffer_s,
        limit_bytes_per_second=c.limit_bytes_per_s,
        reason=_ffi.string(c.reason).decode(),
    )


publish(globals())
