"""A master inside this process."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import weakref
from enum import Enum

from pccl._core import log
from pccl._core.address import (
    IP,
    Endpoint,
    fill_socket_address,
    fill_socket_addresses,
    parse_endpoint,
    parse_endpoints,
    resolve,
    without_run,
)
from pccl._core.calls import SUCCESS, TIMED_OUT, UNBOUNDED, Deadline, NativeHandle, Ticket, call, milliseconds
from pccl._core.errors import PCCLError, Result
from pccl._core.library import _C, _ffi
from pccl._exports import publish
from pccl._host.files import event_file
from pccl._run.credentials import credentials
from pccl_command.native_master import HEARTBEAT_SECONDS, IDLE_SECONDS, is_of_this_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Self

NOTICE_SECONDS = 0.5
"""After which a process that ends, and waits for its master, says so."""


class MasterNode:
    """The master of a run, listening on `listen_address`: `host:port`, `1.2.3.4:port` or `[ipv6]:port`; port 0 = any free one.

    `masters` is the list of all masters of the run, as the peers are given it, with this one in it: the first begins new runs,
    and any of them takes a run up whose master is lost, once more than half of its members have come to it. It finds itself in
    the list by its port and the address it listens on; a wildcard (0.0.0.0, [::]) stands for every address of this machine.
    `advertise` names its entry in the list where peers reach it at an address that this machine does not have, such as that
    of a Kubernetes Service. ValueError: the list does not contain this master.

    `heartbeat_limit`, in seconds, is after how long a silent peer counts as lost (default 5). With `until_empty`, in seconds, it
    ends by itself once neither it nor another master of the list has had a peer for so long, from its beginning on; otherwise it
    serves one run after the other. A master runs once, in a thread of its own. In a `with` statement it runs, and at the end
    stops and is waited for.

    `keys` is the file for masters that `pccl keys` wrote; all connections are then encrypted, and only processes with keys of the
    same run are accepted. None: the file that the environment variable PCCL_KEYS names. PCCLError (INVALID_ARGUMENT): the file
    cannot be used. `cert`, `key` and `ca` as for Communicator; the certificate is one for a master.

    Without keys nothing is encrypted, and the master is reached from this host only: on a wildcard it listens on loopback
    (127.0.0.1 and 127.0.1.1; for [::] also ::1), with a warning, and with any other address, or another master that is not at
    loopback, `run` raises PCCLError (INVALID_ARGUMENT). `insecure`, or the environment variable PCCL_INSECURE=1, lets it listen
    on every address, with a warning. It has no effect with keys.

    `events` is the path of a file, or a directory, for the last events of the master, as of PCCL_EVENTS; False: none are kept.

    When the last reference dies, and at the end of the interpreter, a running master goes on serving, as in PCCL 1.0: that
    thread waits until it was interrupted; Ctrl-C interrupts it. After 0.5 s a line on stderr and a ResourceWarning say so. Call
    `close`, or use a `with` statement.
    """

    def __init__(
        self,
        listen_address: str,
        *,
        heartbeat_limit: float | None = None,
        masters: str | None = None,
        advertise: str | None = None,
        until_empty: float | None = None,
        keys: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        events: str | os.PathLike[str] | Literal[False] | None = None,
    ) -> None:
        (self._endpoint,) = without_run([parse_endpoint(listen_address)])
        self._running = False
        named = credentials(keys, cert, key, ca)
        event_path = None if events is None else event_file(events)
        limit = None if heartbeat_limit is None else milliseconds("heartbeat_limit", heartbeat_limit, *HEARTBEAT_SECONDS)
        idle = None if until_empty is None else milliseconds("until_empty", until_empty, *IDLE_SECONDS)
        listed = without_run(parse_endpoints(masters)) if masters is not None else []
        if advertise is not None and parse_endpoint(advertise) not in listed:
            raise ValueError(
                f"the masters {masters or '(none)'} do not contain {advertise}, the address that this one advertises"
            )
        ip = _first_address(self._endpoint)
        addresses = [(_first_address(one), one.port) for one in listed]
        place = 0
        if advertise is not None:
            place = listed.index(parse_endpoint(advertise))
        elif masters is not None:
            place = _place(self._endpoint, ip, listed, addresses)
        address = _ffi.new("ccoip_socket_address_t *")
        fill_socket_address(address, ip, self._endpoint.port)
        out = _ffi.new("pcclMasterInstance_t **")
        PCCLError.check(_C.pcclCreateMaster(address[0], out), "pcclCreateMaster")
        self._pointer = out[0]
        self._handle = NativeHandle("master", self._pointer, _C.pcclDestroyMaster)
        paths = [_ffi.NULL if path is None else _ffi.new("char[]", path) for path in (named, event_path)]
        list_of_masters = fill_socket_addresses(addresses)
        settings = {
            "heartbeat_limit_ms": limit or 0,
            "idle_limit_ms": idle or 0,
            "insecure": bool(insecure),
            "keys": paths[0],
            "events": paths[1],
            "masters": list_of_masters,
            "master_count": len(listed),
            "self": place,
        }
        made = _ffi.new("struct pccl_ext_master_settings *", settings)
        call(self._handle, "pccl_ext_master_configure", made, name="pcclCreateMaster")

    def run(self) -> None:
        """Listens and serves; returns at once.

        INVALID_USAGE: the port is in use, or it was run before. INVALID_ARGUMENT: it has no keys and would be reached from
        other hosts.
        """
        log.attach()
        call(self._handle, "pcclRunMaster")
        self._running = True
        _running.add(self)

    @property
    def port(self) -> int:
        """The port it listens on; before `run`, the one it was given."""
        if not self._running or not self._handle.owned:
            return self._endpoint.port
        out = _ffi.new("uint16_t *")
        call(self._handle, "pccl_ext_master_port", out)
        return int(out[0])

    def interrupt(self) -> None:
        """Asks it to stop and end the run: peers that know no other master are dead at once. Does not wait.

        INVALID_USAGE: never run.
        """
        call(self._handle, "pcclInterruptMaster")

    def detach(self) -> None:
        """Asks it to stop without ending the run, as if its process had died; does not wait.

        The peers look for another master of their list, or wait for one to come back at this address. Of `interrupt` and `detach`
        the first call counts. INVALID_USAGE: never run.
        """
        call(self._handle, "pcclDetachMaster")

    def wait(self, *, timeout: float | None = None) -> None:
        """Waits until it has stopped, that is for `interrupt` or `detach`. PCCLTimeoutError: not within `timeout` seconds."""
        ticket = self._end()
        ticket.proceed(self._handle, Deadline(timeout))
        ticket.check()

    def close(self) -> None:
        """Stops it, which ends the run unless it was detached, waits until it has stopped, and frees the port. Idempotent."""
        _running.discard(self)
        self._handle.close()

    def __enter__(self) -> Self:
        self.run()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._serve_to_the_end()
            self._handle.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle.closed else "running" if self._running else "not run"
        if self._handle.inherited:
            state = "of the parent process"
        host = str(self._endpoint).rpartition(":")[0]
        return f"<MasterNode {host}:{self.port}: {state}>"

    def _end(self) -> Ticket:
        return Ticket("pcclMasterAwaitTermination", "pccl_begin_master_end", self._pointer)

    def _serve_to_the_end(self) -> None:
        """Waits until it has stopped; Ctrl-C stops it. It says so, for a shell that is left would seem to hang."""
        patience = Deadline(NOTICE_SECONDS)
        while self._running and self._handle.owned:
            try:
                if self._end().proceed(self._handle, patience) == TIMED_OUT:
                    patience = UNBOUNDED
                    print("a pccl master is still running; press Ctrl-C to stop it", file=sys.stderr, flush=True)
                    self._warn()
                    continue
                self._running = False
            except KeyboardInterrupt:
                if _C.pcclInterruptMaster(self._pointer) != SUCCESS:
                    self._running = False

    def _warn(self) -> None:
        """Warns that nobody has closed this master, and says where it serves."""
        host = str(self._endpoint).rpartition(":")[0]
        text = f"the master at {host}:{self.port} is still serving; call close(), or use a with statement"
        import warnings

        with contextlib.suppress(ResourceWarning):  # an error would end the wait
            warnings.warn(text, ResourceWarning, stacklevel=3, source=self)


class RunState(Enum):
    """What masters say of the run that they serve."""

    NONE = 0
    SERVED = 1
    COMPLETED = 2
    """Nobody is there any more, and a member of the last run left it by itself, as at the end of a program."""


def run_state(masters: str, limit: float = 1.0, keys: str = "") -> RunState:
    """Asks these masters, `host:port,host:port/run`. One that does not answer within `limit` seconds has no run.

    If none serves one, the master whose run ended last tells how. `keys` is a file of keys; "": that of PCCL_KEYS, if any.
    """
    from pccl._core.questions import STATUS, ask, read_status

    path = os.fsencode(keys) if keys else _ffi.NULL
    state, last = RunState.NONE, -math.inf
    for endpoint in parse_endpoints(masters):
        with contextlib.suppress(OSError):
            for ip in resolve(endpoint, Deadline(limit)):
                address = _ffi.new("ccoip_socket_address_t *")
                fill_socket_address(address, ip, endpoint.port)
                try:
                    body = ask(STATUS, "run_state", address, endpoint.run, path, int(limit * 1000))
                    served, completed, ended_ms = read_status(body, "run_state")
                except PCCLError:
                    continue
                if served:
                    return RunState.SERVED
                at = time.monotonic() - ended_ms / 1000  # a dead master may have cost seconds since the one before
                if at > last:
                    state, last = RunState.COMPLETED if completed else RunState.NONE, at
    return state


def _first_address(endpoint: Endpoint) -> IP:
    try:
        return resolve(endpoint, UNBOUNDED)[0]
    except OSError as error:
        text = f"the name {endpoint.host} cannot be resolved: {error.strerror or error}"
        raise PCCLError(Result.INVALID_ARGUMENT, "pcclCreateMaster", text) from None


def _place(endpoint: Endpoint, ip: IP, listed: list[Endpoint], addresses: list[tuple[IP, int]]) -> int:
    """Which of the masters this one is. ValueError: none, or more than one could be."""
    names = ",".join(str(one) for one in listed)
    if endpoint in listed:
        return listed.index(endpoint)
    if endpoint.port == 0:
        raise ValueError(f"a master of the list {names} must listen on a port of that list, not on port 0")
    found = [
        position
        for position, (address, port) in enumerate(addresses)
        if port == endpoint.port and (address == ip or (ip.is_unspecified and is_of_this_machine(address.packed)))
    ]
    if not found:
        raise ValueError(
            f"the masters {names} do not contain {endpoint}, where this one listens; give each master the same list, "
            "in which its own address and port are as the peers dial them, or name its entry with `--advertise`"
        )
    if len(found) > 1:
        both = " and ".join(str(listed[position]) for position in found)
        raise ValueError(f"of the masters {names}, {both} are this machine; listen on one of them, not on {endpoint}")
    return found[0]


_running: weakref.WeakSet[MasterNode] = weakref.WeakSet()


def serve_all_to_the_end() -> None:
    """Waits for the masters that are still referenced, while signals are still handled: later Ctrl-C would kill."""
    for master in list(_running):
        master._serve_to_the_end()


publish(globals())
