"""A process group for torchft: `Manager(pg=pccl.torchft.ProcessGroup(), ...)`, in place of its ProcessGroupGloo.

torchft decides who takes part, and divides by their number. So here a loss is an error, which makes the Manager drop the step: no
call is ended among fewer members than torchft has counted. docs/torchft.md says how the two work together.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError as error:
    raise ImportError(f"pccl.torchft needs torchft: pip install 'pccl[torchft]' ({error})") from error

from pccl import distributed
from pccl._core.calls import Deadline
from pccl._core.errors import PCCLError
from pccl._peer.communicator import Communicator
from pccl._run.master import MasterNode
from pccl.distributed._board import host_of, own_address
from pccl.distributed._collectives import Collectives
from pccl.distributed._group import WORLD_NAME
from pccl.distributed._launch import Launcher
from pccl.distributed._p2p import PointToPoint
from pccl.distributed._view import View
from pccl.distributed._work import Completer

if TYPE_CHECKING:
    import torch.distributed as dist

    Work = dist.Work


class ProcessGroup(ProcessGroupWrapper):  # type: ignore[misc]
    """A process group that torchft configures anew for each quorum. CPU tensors.

    `timeout` limits `configure`, and each call that is given no limit of its own. Several groups may be in one process.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._seat: _Seat | None = None
        self._aborted: Exception | None = None

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> distributed.ProcessGroup:
        self._aborted = None
        self._seat = seat = _Seat(store, rank, world_size, self._timeout)
        try:
            members = seat.take()
        except (PCCLError, RuntimeError) as error:  # those of a store are RuntimeErrors
            seat.close()
            raise RuntimeError(f"rank {rank} of {world_size} did not join the group of the quorum: {error}") from error
        except BaseException:
            seat.close()
            raise
        launcher = Launcher(seat.communicator, WORLD_NAME, View(members, members[rank]), strict=True)
        return distributed.ProcessGroup(store, launcher, Completer(), self._timeout)

    def abort(self, errored: bool = True) -> None:
        """Leaves the group: what waits here and elsewhere ends with an error. `configure` makes it anew."""
        if errored:
            self._aborted = RuntimeError("the process group was aborted; call configure to make a new group")
        self._leave()
        super().abort(errored)

    def shutdown(self) -> None:
        """Leaves the group for good: what the others have under way with this member ends with an error."""
        self._leave()
        super().shutdown()

    def _leave(self) -> None:
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.close()

    def errored(self) -> Exception | None:
        """That the group was aborted. All other errors are told by the call that they ended."""
        return self._aborted

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the limit of `configure` and of calls that are given none."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name under which it is registered."""
        return "torchft-pccl"

    def rank(self) -> int:
        """The rank that the last `configure` was given."""
        return int(self.parent.rank())

    getRank = rank  # noqa: N815 - what C++ calls

    def getSize(self) -> int:  # noqa: N802 - what C++ calls
        """The number of members that the last `configure` was given."""
        return int(self.parent.size())


def _relay(name: str) -> Any:
    def call(self: ProcessGroup, *arguments: Any, **named: Any) -> Any:
        return getattr(self.parent, name)(*arguments, **named)

    call.__name__ = name
    return call


for _name in {*vars(Collectives), *vars(PointToPoint)} - vars(ProcessGroupWrapper).keys():
    if not _name.startswith("__"):  # what torch calls, and ProcessGroupWrapper does not hand on
        setattr(ProcessGroup, _name, _relay(_name))


class _Seat:
    """A member's part in the run of one quorum. Rank 0 has the master of the run, too, and ends the run when it leaves."""

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._deadline = Deadline(timeout.total_seconds())
        self._closing = threading.Lock()
        self._closed = False
        self._master: MasterNode | None = None
        self._communicator: Communicator | None = None
        _seats.add(self)

    @property
    def communicator(self) -> Communicator:
        """That of this member, once it was made."""
        assert self._communicator is not None
        return self._communicator

    def take(self) -> Sequence[UUID]:
        """Waits until all are there, and gives their names in the run, in the order of their ranks."""
        if self._rank == 0:
            self._begin_master()
        address = self._read("master")
        if not address:
            raise RuntimeError("rank 0 could not start a master: see what it prints")
        communicator = Communicator(address, master_recovery_limit=0)  # a lost master is an error at once
        with self._closing:
            if self._closed:
                raise RuntimeError("the process group was aborted meanwhile")
            self._communicator = communicator
        communicator.connect(timeout=self._deadline.remaining())
        self._store.set(f"pccl/member/{self._rank}", str(communicator.uuid))
        communicator.wait_for_peers(self._world_size, timeout=self._deadline.remaining())
        return [UUID(self._read(f"member/{rank}")) for rank in range(self._world_size)]

    def _begin_master(self) -> None:
        served = host_of(self._store)
        host = "127.0.0.1" if served == "localhost" or served.startswith("127.") else own_address(served)
        master = MasterNode(f"{host}:0")
        with self._closing:
            if self._closed:
                raise RuntimeError("the process group was aborted meanwhile")
            try:
                master.run()
            except PCCLError:
                self._store.set("pccl/master", "")  # the others need not wait
                raise
            self._master = master
        self._store.set("pccl/master", f"{host}:{master.port}")

    def _read(self, name: str) -> str:
        key = f"pccl/{name}"
        self._store.wait([key], timedelta(seconds=max(self._deadline.remaining() or 0.0, 0.001)))
        return self._store.get(key).decode()

    def close(self) -> None:
        """Leaves. Idempotent; a `take` under way ends with an error."""
        with self._closing:
            self._closed = True
        if self._communicator is not None:
            self._communicator.close()
        if self._master is not None:
            self._master.close()

    def __del__(self) -> None:
        self.close()


_seats: weakref.WeakSet[_Seat] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """A process that ends leaves; it would wait for its masters otherwise."""
    for seat in list(_seats):
        if seat._communicator is not None:
            seat._communicator._drop()
        seat.close()
