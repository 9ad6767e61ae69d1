"""A relay: joins two TCP connections that name the same link (csrc/net/relay_server.h)."""

from __future__ import annotations

import logging
import resource
import weakref

from pccl._core.address import Endpoint, fill_socket_addresses, resolve
from pccl._core.calls import UNBOUNDED
from pccl._core.errors import PCCLError
from pccl._core.library import _C, _ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

LINK_DESCRIPTORS = 2
OTHER_DESCRIPTORS = 320
_log = logging.getLogger("pccl")


class Relay:
    """Listens at the endpoint; port 0 is any. A thread of its own relays until `close`.

    `credentials`: keys or a certificate of the run whose peers may use it, as `pccl._run.credentials` gives them; None: all may.
    `links`: how many it joins at most; fewer, with a warning, if the hard limit of open files forbids it. The soft limit of this
    process is raised to what they need. PCCLError: it cannot listen there (INVALID_USAGE), or the credentials cannot be used
    (INVALID_ARGUMENT). OSError: the host cannot be resolved.
    """

    def __init__(self, endpoint: Endpoint, credentials: bytes | None, *, links: int = 1024) -> None:
        address = fill_socket_addresses([(resolve(endpoint, UNBOUNDED)[0], endpoint.port)])
        port, out = _ffi.new("uint16_t *"), _ffi.new("struct pccl_ext_relay **")
        keys = _ffi.NULL if credentials is None else credentials
        PCCLError.check(_C.pccl_ext_relay_new(address, keys, make_room(links), port, out), "relay")
        self.port: int = port[0]
        self._pointer = out[0]
        self._end = weakref.finalize(self, _C.pccl_ext_relay_free, self._pointer)

    def _counts(self) -> tuple[int, int]:
        links, count = _ffi.new("uint32_t *"), _ffi.new("uint64_t *")
        if self._end.alive:
            _C.pccl_ext_relay_counts(self._pointer, links, count)
        return links[0], count[0]

    @property
    def links(self) -> int:
        """How many links it relays now."""
        return self._counts()[0]

    @property
    def bytes(self) -> int:
        """How many bytes it has passed on."""
        return self._counts()[1]

    def close(self) -> None:
        """Closes all connections, and listens no longer."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_room(links: int) -> int:
    """Raises the soft limit of open files to what so many links need. Returns how many the hard limit permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = links * LINK_DESCRIPTORS + OTHER_DESCRIPTORS
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit == needed:
        return links
    fewer = max(1, (limit - OTHER_DESCRIPTORS) // LINK_DESCRIPTORS)
    _log.warning(
        "relay: it joins %d links, not %d, for which it needs %d open files; raise the hard limit (%d; ulimit -Hn)",
        fewer,
        links,
        needed,
        hard,
    )
    return fewer
