"""A peer's connection to a run: it joins, leaves, and knows the members."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn, Self

from pccl._core import log
from pccl._core.address import (
    IP,
    MASTERS_MAX,
    Endpoint,
    fill_socket_address,
    fill_socket_addresses,
    parse_endpoints,
    permitted,
    resolve,
    run_address,
)
from pccl._core.calls import INVALID_USAGE, SUCCESS, Deadline, NativeHandle, Ticket, call, milliseconds, whole_number
from pccl._core.errors import (
    ConnectError,
    PCCLError,
    PCCLTimeoutError,
    Result,
    UsageError,
    WrongKeysError,
    error_for,
)
from pccl._core.library import _C, _ffi
from pccl._core.names import check_name, text_of
from pccl._core.tensors import RoomPool, require_kind
from pccl._host.files import event_file
from pccl._host.waits import IN_RUN, NOT_JOINED, master_patience, may_begin, tell_supervisor
from pccl._ops.handle import Events
from pccl._ops.operations import stop
from pccl._ops.reduces import Reaper
from pccl._peer import standby
from pccl._peer.membership import UNSET, Membership
from pccl._peer.shared_state import SharedState
from pccl._run.credentials import credentials
from pccl._watch import stacks
from pccl._watch.stacks import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from pccl._watch.spans import Spans

PCCLError.check(_C.pcclInit(), "pcclInit")

PAUSE_SECONDS = 1.0
"""After each failed attempt to connect."""

KEYS_TRIES = 3
"""Attempts of `connect` that may fail in succession because keys do not fit: an earlier master may be about to end."""

STATE_BYTES = 256

_texts: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""What the pointers of settings lead to."""

GIVES_ONCE_SYNCED, GIVES_AT_ONCE, GIVES_NEVER = range(3)
"""When a peer gives the state that it copies, as a newcomer, to others (`pccl_ext_comm_set_state`)."""


def _wants_spans(asked: bool | None) -> bool:
    """`pccl._watch.spans` is imported only where somebody may want spans."""
    if not asked and (asked is False or not any(name.startswith("OTEL_") for name in os.environ)):
        return False
    from pccl._watch.spans import is_wanted

    return is_wanted(asked)


def _interfaces(given: str | Sequence[str] | None) -> str | None:
    """The names of network cards as C wants them: with commas. TypeError: not a name, or names."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"interface must be a name such as 'eth0', or a sequence of names, not {given!r}")
    return ",".join(given)


def _settings(**given: Any) -> Any:
    """Makes a `pccl_ext_comm_settings`, in which all else stays as it is. Its texts are bytes."""
    kept = {name: _ffi.new("char[]", value) if isinstance(value, bytes) else value for name, value in given.items()}
    unset = dict.fromkeys(("recovery_ms", "least", "most", "wait_ms"), UNSET)
    settings = _ffi.new("struct pccl_ext_comm_settings *", unset | {name: v for name, v in kept.items() if v is not None})
    _texts[settings] = kept
    return settings


def _stop(live: set[Any], watches: Sequence[Watch], pointer: Any) -> None:
    stop(live, pointer)
    for watch in watches:
        watch.join()


class Connection(Membership):
    """The part of a `Communicator` that needs no tensors: how it joins a run and leaves it."""

    def __init__(
        self,
        address: str | None = None,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        master_recovery_limit: float | None = None,
        min_members: int | None = None,
        max_members: int | None = None,
        min_members_timeout: float | None = None,
        name: str | None = None,
        interface: str | Sequence[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        events: str | os.PathLike[str] | Literal[False] | None = None,
        spans: bool | None = None,
    ) -> None:
        log.attach()
        self._endpoints = parse_endpoints(run_address(address))
        self._endpoint = self._endpoints[0]
        self._recovery_ms: int | None = None
        if master_recovery_limit is not None:
            self._recovery_ms = milliseconds("master_recovery_limit", master_recovery_limit, 0, 3600)
        self._limits = (
            UNSET if min_members is None else whole_number("min_members", min_members, 31),
            UNSET if max_members is None else whole_number("max_members", max_members, 31),
            UNSET if min_members_timeout is None else milliseconds("min_members_timeout", min_members_timeout, 0, 86400),
        )
        self._name = None if name is None else check_name(name)
        self._interface = _interfaces(interface)
        self._keys = credentials(keys, cert, key, ca)
        self._insecure = insecure
        self._event_path = None if events is None else event_file(events)
        self._wants_spans = _wants_spans(spans)
        self._spans: Spans | None = None
        self._peer_group = whole_number("peer_group", peer_group, 32)
        self._pool_size = whole_number("p2p_connection_pool_size", p2p_connection_pool_size, 32)
        self._connected = False
        self._why_failed = ""  # the last attempt to connect
        self._is_closed = False
        self._unfinished = {}
        self._live_ops = set()
        self._pool = RoomPool()
        self._state_to_copy: SharedState | None = None  # C reads it until the communicator is freed
        self._gives = GIVES_ONCE_SYNCED
        self._vaults = {}
        self._notices = []
        self._made_notices = []
        self._exclusive = threading.Lock()
        self._asking = threading.Lock()
        self._adopt(self._create(self._endpoint.literal), self._endpoint.literal)

    # ---- life ----

    def connect(
        self,
        n_attempts: int = 5,
        *,
        timeout: float | None = None,
        begin: bool | None = None,
        wait_for_master: float | None = None,
        state: SharedState | None = None,
    ) -> None:
        """Joins the run: returns once this peer is accepted and all attributes are valid.

        The first peer of a run is accepted at once; a newcomer waits until all accepted peers are in `update_topology`.
        Each of `n_attempts` looks the host name up and tries all its addresses; a pause of 1 s follows a failed one.
        ConnectError when all have failed. Usage errors are not repeated, such as INVALID_USAGE when connected already, or at a
        master of another wire version. Keys or certificates that do not fit end the third attempt in succession, or an earlier
        one when the time is up, with a ConnectError that is a UsageError, too.

        `begin=False`: the peer never begins a run. ConnectError if no run goes on. None: True, unless PCCL_JOIN=1 is set, as it
        is for a restarted process. `wait_for_master`: attempts go on until a master answers, for so many seconds instead of
        `n_attempts`, then ConnectError. None: as the environment variable PCCL_CONNECT_TIMEOUT_S says, else 0, which is no limit.

        `state`: what the members sync. A newcomer copies it from a member that has passed one, while the members go on, and is
        admitted when that is done; `sync_shared_state` then fetches only what has changed since. From its first sync on, this
        peer gives its own state to newcomers, until it is closed. After an error of `connect` the tensors are unspecified.
        INVALID_ARGUMENT: a tensor was replaced since the state was made.
        """
        deadline = Deadline(timeout)
        whole_number("n_attempts", n_attempts, 63)
        if state is not None:
            require_kind("state", state, SharedState)
            state._collect("pcclConnect")
            self._state_to_copy, self._gives = state, GIVES_ONCE_SYNCED
        limit = master_patience(wait_for_master)
        patience = Deadline(limit)
        answered = deadline.sooner(patience)
        join_only = not may_begin(begin)
        failure = ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect", "no attempt was allowed")
        refusals = 0
        log.attach()
        with self._alone("pcclConnect"):
            for attempt in itertools.count(1):
                if (attempt > n_attempts) if limit is None else (attempt > 1 and patience.passed()):
                    break
                try:
                    self._attempt(answered, deadline, join_only)
                except ConnectError as error:
                    failure, self._why_failed = error, error.detail
                except PCCLTimeoutError as error:
                    if self._why_failed:  # and no master has answered since
                        error.detail = f"{error.detail} (the attempt before failed: {self._why_failed})"
                        if isinstance(failure, WrongKeysError):
                            break
                    if deadline.passed():
                        raise
                    failure = ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect", error.detail)
                    break
                else:
                    if join_only:
                        tell_supervisor(IN_RUN)
                    self._why_failed = ""
                    return
                refusals = refusals + 1 if isinstance(failure, WrongKeysError) else 0
                if refusals == KEYS_TRIES:
                    break
                answered.sleep(PAUSE_SECONDS)
                if deadline.passed():
                    if refusals:
                        break
                    raise PCCLTimeoutError(Result.TIMED_OUT, "pcclConnect", failure.detail)
        if join_only:
            tell_supervisor(NOT_JOINED)
        raise failure

    def reconnect(
        self,
        n_attempts: int = 5,
        *,
        timeout: float | None = None,
        begin: bool | None = None,
        wait_for_master: float | None = None,
        state: SharedState | None = None,
    ) -> None:
        """Joins again, as a new peer, after this one was expelled or has lost its master. Else it leaves first.

        Ops in flight are cancelled, as by `close`. Connects as `connect` does, with the same arguments; cut short or failed, it
        is `connect` that goes on. Without a `state`, the one that was passed before is copied and given again.
        A SharedState keeps its tensors and revision, and the next sync brings it up to date. Snapshots stay as well.
        INVALID_USAGE after `close`.
        """
        with self._alone("pcclConnect"):
            if self._handle.closed:
                raise error_for(INVALID_USAGE, "pcclConnect", "the communicator is closed")
            fresh = self._create(self._ip)
            kept, self._vaults = self._vaults, {}  # else `_tear_down` would free them
            made, self._made_notices = self._made_notices, []
            try:
                self._tear_down()
                for vault in kept.values():
                    vault.settle()
            finally:  # after Ctrl-C too, `connect` goes on with the fresh one
                self._vaults, self._made_notices = kept, made
                self._replace(fresh, self._ip)
                self._connected = False
        self.connect(n_attempts, timeout=timeout, begin=begin, wait_for_master=wait_for_master, state=state)

    def close(self) -> None:
        """Leaves the run and frees everything, in bounded time. Idempotent.

        Calls blocked in other threads end with an error; ops in flight are cancelled, and their tensors are free afterwards.
        Handles tell which ops had ended well before. Snapshots in the memory of this process are freed; those that a holder
        keeps stay.
        """
        self._is_closed = True  # before the handle is read; `_replace` does both in the other order
        if not self._handle.closes_below:  # else C uses what would be freed here
            self._tear_down()

    def _tear_down(self) -> None:
        """Closes the C communicator in use, and all that belongs to it. `reconnect` replaces it afterwards."""
        for notice in self._made_notices:
            notice._close_unless_given()
        spans = self._spans
        if spans is not None:
            spans.stop()
        self._handle.close()
        self._events.closed()
        self._reaper.stop()
        self._unfinished.clear()
        for op in list(self._live_ops):
            op.dropped = None  # which holds the op in turn
        self._live_ops.clear()
        self._end_spans()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
            self._end_as(_C.pccl_ext_end_fails)
        self.close()

    def __del__(self) -> None:
        # Without a caller the interpreter is ending, by `sys.exit` perhaps: C sees the status.
        ends = sys.is_finalizing() or (sys._getframe().f_back is None and threading.current_thread() is threading.main_thread())
        with contextlib.suppress(Exception):
            self._drop() if ends else self.close()

    def _drop(self) -> None:
        """Closes as the process ends. The others take it for a death unless its status is 0."""
        self._end_as(_C.pccl_ext_end_undecided)
        self.close()

    def _end_as(self, end: int) -> None:
        with contextlib.suppress(PCCLError):
            call(self._handle, "pccl_ext_comm_set_end", end)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Communicator cannot be copied or pickled; make one in each process")

    def __repr__(self) -> str:
        return f"<Communicator {','.join(map(str, self._endpoints))} group {self._peer_group}: {self._state()}>"

    def _begin_spans(self) -> None:
        if not self._wants_spans:
            return
        path = self.event_file
        if path is None:
            text = "spans are made of this peer's events, and none are kept: PCCL_EVENTS or events= is off, or there is no room"
            warnings.warn(text, RuntimeWarning, stacklevel=5)
            return
        from pccl._watch.spans import Spans

        self._end_spans()
        self._spans = Spans(path)
        if self._is_closed:  # meanwhile
            self._end_spans()

    def _end_spans(self) -> None:
        spans, self._spans = self._spans, None
        if spans is not None:
            spans.stop()
            spans.close()

    # ---- the state that newcomers copy ----

    def _copy(self, state: SharedState) -> None:
        """Makes the next `connect` copy this state, which newcomers get from this peer only after `_offer`."""
        state._collect("pcclConnect")
        self._state_to_copy, self._gives = state, GIVES_NEVER

    def _offer(self, state: SharedState | None) -> None:
        """Gives newcomers this state, which is that of the run, until another one or None takes its place."""
        entries = (_ffi.NULL, _ffi.NULL) if state is None else (state.to_c(), state._read_only())
        call(self._handle, "pccl_ext_comm_set_state", *entries, GIVES_AT_ONCE, name="pcclConnect")
        self._state_to_copy, self._gives = state, GIVES_ONCE_SYNCED  # C has let go of the one before

    # ---- inside ----

    def _create(self, ip: IP | None) -> Any:
        params = _ffi.new("pcclCommCreateParams_t *")
        if ip is not None:
            fill_socket_address(params.master_address, ip, self._endpoint.port)
        params.peer_group = self._peer_group
        params.p2p_connection_pool_size = self._pool_size
        out = _ffi.new("pcclComm_t **")
        PCCLError.check(_C.pcclCreateCommunicator(params, out), "pcclCreateCommunicator")
        pointer = out[0]
        least, most, wait_ms = self._limits
        settings = _settings(
            recovery_ms=UNSET if self._recovery_ms is None else self._recovery_ms,
            least=least,
            most=most,
            wait_ms=wait_ms,
            name=self._name,
            interfaces=None if self._interface is None else self._interface.encode(),
            run=self._endpoint.run.encode(),
            keys=self._keys,
            events=self._event_path,
            insecure=self._insecure,
        )
        try:
            PCCLError.check(_C.pccl_ext_comm_configure(pointer, settings), "pcclCreateCommunicator")
        except BaseException:
            _C.pcclDestroyCommunicator(pointer)
            raise
        return pointer

    def _adopt(self, pointer: Any, ip: IP | None) -> None:
        """Takes a new C communicator as the one in use. C takes addresses only, so each address tried has its own."""
        self._pointer = pointer
        self._ip = ip
        self._missing = set()
        self._stacks = Watch(stacks.answer, "pccl:stacks", stacks.JOIN_SECONDS)
        self._standby = Watch(standby.watch, "pccl:standby", standby.JOIN_SECONDS)
        ends = functools.partial(_stop, self._live_ops, (self._stacks, self._standby))
        self._handle = NativeHandle("communicator", pointer, _C.pcclDestroyCommunicator, ends)
        self._events = Events(self._handle)
        self._leaves = False
        self._reaper = Reaper(self._handle, self._unfinished)

    def _replace(self, pointer: Any, ip: IP | None) -> None:
        """Adopts a new C communicator, whose predecessor is closed. Closes it too if `close` was called meanwhile."""
        self._adopt(pointer, ip)
        if self._is_closed:
            self._tear_down()

    def _attempt(self, answered: Deadline, deadline: Deadline, join_only: bool) -> None:
        """One attempt over all addresses, of which one has to answer by `answered`.

        ConnectError: it may be repeated; any other PCCLError: it may not.
        """
        if self._connected or self._handle.closed or "pcclConnect" in self._unfinished:
            self._connect_once(answered, deadline)  # on the object that is there
            return
        if len(self._endpoints) > 1:
            self._attempt_list(answered, deadline, join_only)
            return
        addresses = self._resolve(self._endpoint, answered)
        failures: list[str] = []
        for position, ip in enumerate(addresses):
            if ip != self._ip:
                fresh = self._create(ip)
                try:
                    self._handle.close()
                finally:
                    self._replace(fresh, ip)
            try:
                self._set_up(join_only)
                self._connect_once(answered, deadline)
                return
            except (ConnectError, UsageError) as error:  # UsageError: this one is of another version
                if self._is_closed:
                    raise
                failures.append(error.detail)
                if position == len(addresses) - 1:
                    error.detail = "; ".join(failures)
                    raise

    def _attempt_list(self, answered: Deadline, deadline: Deadline, join_only: bool) -> None:
        """One attempt over all masters of the list; C tries them in turn, and keeps them for when the master is lost."""
        found: list[tuple[IP, int]] = []
        failures: list[ConnectError] = []
        for endpoint in self._endpoints:
            try:
                found += [(ip, endpoint.port) for ip in self._resolve(endpoint, answered)]
            except ConnectError as error:  # a standby whose name is not known today
                failures.append(error)
        unknown = "; ".join(error.detail for error in failures)
        if not found:
            failures[0].detail = unknown
            raise failures[0]
        masters = fill_socket_addresses(found[:MASTERS_MAX])
        self._set_up(join_only, masters)
        try:
            self._connect_once(answered, deadline)
        except ConnectError as error:
            error.detail = "; ".join(filter(None, (unknown, error.detail)))
            raise

    def _resolve(self, endpoint: Endpoint, deadline: Deadline) -> list[IP]:
        try:
            addresses = resolve(endpoint, deadline)
        except TimeoutError as error:
            raise PCCLTimeoutError(Result.TIMED_OUT, "pcclConnect", str(error)) from None
        except OSError as error:
            text = f"the name {endpoint.host} cannot be resolved: {error.strerror or error}"
            raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect", text) from None
        keys = _ffi.NULL if self._keys is None else self._keys
        return permitted(endpoint, addresses, keys, self._insecure, "pcclConnect")

    def _set_up(self, join_only: bool, masters: Any = None) -> None:
        listed = {} if masters is None else {"masters": masters, "master_count": len(masters)}
        call(self._handle, "pccl_ext_comm_configure", _settings(join_only=join_only, **listed), name="pcclConnect")
        self._stacks.start(self._handle)
        if self._state_to_copy is not None:
            self._state_to_copy._forget_freed()
            arguments = (self._state_to_copy.to_c(), self._state_to_copy._read_only(), self._gives)
            call(self._handle, "pccl_ext_comm_set_state", *arguments, name="pcclConnect")

    def _connect_once(self, answered: Deadline, deadline: Deadline) -> None:
        ticket = self._unfinished.setdefault("pcclConnect", Ticket("pcclConnect", "pccl_begin_connect", self._pointer))
        try:
            try:
                self._complete("pcclConnect", ticket, answered)
            except PCCLTimeoutError:
                if ticket.c.value:  # no master has answered yet
                    raise
                self._why_failed = ""
                self._complete("pcclConnect", ticket, deadline)
        except PCCLTimeoutError as error:
            text = "not admitted yet: newcomers wait until all members call update_topology, and spares until a member is gone; "
            waits = ticket.waits_for() or text
            if ticket.c.value:  # C names only those that have refused
                waits = f"{waits.removesuffix('; ')}, at {', '.join(map(str, self._endpoints))}; "
            error.detail = f"{waits}connect again to wait on"
            raise
        except PCCLError as error:
            if error.result in (Result.MASTER_CONNECTION_FAILED, Result.RANK_CONNECTION_FAILED, Result.INTERNAL_ERROR):
                kind = WrongKeysError if ticket.c.value else ConnectError
                raise kind(error.result, "pcclConnect", error.detail) from None
            raise
        self._connected = True
        self._begin_spans()
        self._forget("pcclConnect", ticket)
        if len(self._endpoints) > 1:
            with contextlib.suppress(RuntimeError):  # the system refuses the thread
                self._standby.start(weakref.ref(self), self._endpoints, self._keys, self._insecure)
        for notice in self._notices:
            if notice.given:
                self._on_notice(notice)

    def _state(self) -> str:
        text = _ffi.new("char[]", STATE_BYTES)
        with contextlib.suppress(Exception), self._handle as pointer:
            if _C.pccl_ext_comm_state(pointer, text, STATE_BYTES) == SUCCESS:
                return text_of(text)
        return "of the parent process" if self._handle.inherited else "closed"
