"""Training that processes join while it runs."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from pccl._core.errors import PCCLError
from pccl._exports import publish
from pccl._ops.journal import Journal
from pccl._watch.reports import AT_RISK
from pccl.distributed._dtensors import parameters_of
from pccl.distributed._group import ProcessGroup, group_of_all
from pccl.distributed._replicated import Replicated
from pccl.distributed._sharded import Restored, Sharded
from pccl.distributed._tensors import made_on_cpu
from pccl.distributed._this_run import this_run
from pccl.distributed._training import Training, listed
from pccl.distributed._work import seconds_of
from pccl.notice import Notice, as_notice, weakly
from pccl.state import load, save
from pccl.state._local.agreement import Terms, joined, terms_of_values
from pccl.state._local.module import require_same_names
from pccl.state._local.objects import has_state, load_object_state, object_state
from pccl.state._parity import require_policy
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.keeper import Keeper
from pccl.state._snapshots.snapshot import Report as SnapshotReport

RISK_SECONDS = 1.0
"""Between two reports of how many steps a loss would cost, at least."""

_Result = TypeVar("_Result")

_log = logging.getLogger("pccl.distributed")


class Elastic:
    """A model and its optimizer in a training whose processes may be lost, and others join.

    All processes call `sync` at the top of each step. It lets those in that wait, and brings them up to date out of the memory of
    the others: parameters and optimizer state; buffers and `values` are those of the member that has been there for longest.

    `values` are what else a newcomer needs, such as `step=0`; they are attributes. One with `state_dict` and `load_state_dict`,
    such as a scheduler, is brought up to date by these; any other is replaced. What they consist of are numbers, strings,
    tensors, arrays, and lists, tuples, dicts and sets of these; `pccl.state.allow` adds a class. The learning rates of the
    optimizer that a scheduler steers come along. Generators of random numbers are values too.

    `save` and `load` are for the loss of all processes: a run begins with the checkpoint of the highest step, whoever has it.

    `every`: only each so many calls of `sync` look whether somebody waits. ValueError: arguments that do not fit the model.

    `parity_every`: each so many calls of `sync` of the run compare parameters and optimizers of all members, bit for bit, before
    newcomers are let in. `parity` is the policy of `check_parity`: "raise", "repair", which logs a warning, or "expel". Then
    `sync` may raise ParityError.

    `leaves_on`: a signal, such as SIGTERM, or a `pccl.notice.Notice`, upon which this process leaves in order, as by `leave`. A
    second signal, 2 s later or more, does what the first would have done without. With signals the constructor has to be called
    in the main thread.

    **Sharded models.** The model may be sharded with FSDP2 (`fully_shard`) over all members, also with replicas (HSDP). A lost
    member takes its part of the state along: `snapshots` keeps copies or a code of each part in the memory of others. Catch the
    PeerLostError of a step, and call `sync` again: it divides the state among those who are there, and what was lost comes from
    the newest snapshot, to whose step all go back. Where nothing was lost, as when somebody joins, or when replicas have all
    parts, the step stays. StateLostError on all members: more was lost than the snapshots bear. With replicas every call after
    a loss raises PeerLostError until `sync`, as in strict mode, and so does `optimizer.step()`, in which all agree to step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        every: int = 1,
        snapshots: Snapshots | None = None,
        leaves_on: Notice | signal.Signals | None = None,
        parity_every: int | None = None,
        parity: str = "raise",
        **values: Any,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 or more calls, not {every}")
        if parity_every is not None and parity_every < 1:
            raise ValueError(f"parity_every must be 1 or more calls, not {parity_every}")
        require_policy(parity)
        if parity_every is None and parity != "raise":
            _log.warning("parity=%r is for the checks of parity_every=, which is None: nothing is checked", parity)
        for name in values:
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"Elastic: {name!r} cannot be the name of a value; choose another name")
        optimizers = listed(optimizer)
        self._values = values
        self._training = Training(model, optimizers)
        self._sharded: Sharded | None = None
        terms = _weak(self._terms)
        callbacks = _weak(self._told_values), _weak(self._take_told_values), _weak(self._progress)
        if self._training.is_sharded:
            if parity_every is not None:
                raise ValueError("parity_every compares what all members hold alike, and this model is sharded")
            commits = [one.commit_tag for one in self._data()]
            self._sharded = Sharded(self._training, snapshots, *callbacks, terms, _weak(self._objects), commits)
        elif snapshots is not None:
            raise ValueError("snapshots are for sharded models; every member of this training has the whole state")
        self._replicated = Replicated(self._training, *callbacks, terms, parity_every, parity)
        self._settings = {"every": every, "parity_every": parity_every, "parity": parity if parity_every else "unused"}
        self._every = every
        self._calls = 0
        self._steps = 0
        self._known: tuple[UUID, ...] = ()
        self._origin = 0  # the step of the checkpoint that was loaded
        self._told_risk = -1, 0.0  # steps, and when they were reported
        self._leaves = False
        self._deals = False
        self._journal = Journal()
        for one in optimizers if self._data() else ():
            inner = getattr(one, "optimizer", one)  # of a wrapper, such as accelerate's, which takes no hooks
            (inner if isinstance(inner, Optimizer) else one).register_step_post_hook(lambda *_: self._seal())
        notice = None if leaves_on is None else as_notice(leaves_on)
        self._made_notice = None if notice is leaves_on else notice  # of a signal
        self._notice = notice
        if self._notice is not None:
            self._notice.listen(weakly(self._on_notice))

    def sync(self, timeout: timedelta | float | None = None) -> bool:
        """Lets newcomers in; at one of them, becomes a member. Whether the members are others than after the last call.

        Then ranks and the world size may be others too, so that data has to be shared out anew; the first call gives True.
        It is a barrier of all members, to be called between two steps. `timeout`, in seconds if it is a number: None: as of the
        group; 0: it only looks whether all others have called it.

        ValueError, in the first call on all members: they differ in what all need alike, such as the class of an optimizer.
        JoinError, at a newcomer only: it was not let in, or it differs. Left, after `leave`: this process is a member no longer.
        PCCLTimeoutError: some member has not called it; call it again before the next step. If members were let in, or the state
        of a sharded model was divided, when this error or Ctrl-C came, the call cannot be repeated: end this process.
        """
        group = group_of_all("Elastic")
        with made_on_cpu():
            return self._sync(group, group._timeout if timeout is None else seconds_of(timeout))

    def _sync(self, group: ProcessGroup, seconds: float) -> bool:
        self._wants_to_leave()
        with self._journal.call(group.communicator, "sync") as journal:
            lost = self._commit_data(journal, group, seconds)
            changed, anew = journal.once(self._sync_members, group, seconds)
            if anew or lost or not self._deals:
                self._deal_data(journal, group, seconds, keeps_open=self._sharded is None or not (self._deals and anew))
        self._tell_risk(group)
        return changed

    def _tell_risk(self, group: ProcessGroup) -> None:
        """Reports how many steps a loss would cost, once a second at most, or when that is none any more."""
        kept = self.protected_step
        steps = self._progress() - (self._origin if kept is None else kept)
        if steps != self._told_risk[0] and (steps <= 0 or time.monotonic() - self._told_risk[1] >= RISK_SECONDS):
            self._told_risk = steps, time.monotonic()
            with contextlib.suppress(PCCLError):
                group.communicator.report(**{AT_RISK: steps})

    def _sync_members(self, group: ProcessGroup, seconds: float) -> tuple[bool, bool]:
        """Whether the members are others than before, and whether ranks may be."""
        looks = self._calls % self._every == 0
        if self._sharded is not None:
            changed = anew = self._sharded.sync(group, seconds, looks=looks, leaves=self._wants_to_leave)
        else:
            anew = self._replicated.sync(group, seconds, self._steps, looks=looks, announce=self._announce)
            changed = group.members != self._known
            self._known = group.members
        self._calls = 1 if anew else self._calls + 1
        self._steps += 1
        return changed, anew

    def leave(self) -> None:
        """Makes the next `sync` of this process the last one: it raises Left, and the others go on without it at the same step.

        With `every` it is the next one that looks. What this process has of a sharded state is divided among the others before.
        If all members leave at once, a last snapshot stays in the memory of their hosts for a run of the same name.
        """
        self._leaves = True
        group = dist.GroupMember.WORLD if dist.is_initialized() else None
        if isinstance(group, ProcessGroup) and not this_run.to_join:
            self._announce(group)

    def _wants_to_leave(self) -> bool:
        if not self._leaves and ((self._notice is not None and self._notice.given) or self._is_drained()):
            self.leave()
        return self._leaves

    def _is_drained(self) -> bool:
        """Whether `pccl drain` has named this member. Without a call of `leave` it would go before it has given its part away."""
        group = dist.GroupMember.WORLD if self._sharded is not None else None
        comm = group.communicator if isinstance(group, ProcessGroup) and not this_run.to_join else None
        return comm is not None and comm.uuid in comm.leaving

    def _on_notice(self, _: Notice) -> None:
        self.leave()

    def _announce(self, group: ProcessGroup) -> None:
        """Tells all members that this one leaves, if it does. It hands its part of a sharded state over before."""
        if not self._leaves:
            return
        within = None if self._notice is None else self._notice.seconds_left
        with contextlib.suppress(PCCLError):  # the call that follows says it
            if self._sharded is not None:
                group.communicator._announce(within, at_update=False)
            else:
                group.communicator.leave(within=within)

    @property
    def protected_step(self) -> int | None:
        """The step at which the run would go on after the loss of a member now: that of the newest whole snapshot, or the value
        `step` (else the calls of `sync`) if other members have the whole state, too. None: this process alone has some of it, and
        there is no snapshot. `pccl top` and `/metrics` show how many steps that would cost."""
        if self._sharded is not None:
            return self._sharded.protected_step
        group = dist.GroupMember.WORLD if dist.is_initialized() else None
        return self._progress() if isinstance(group, ProcessGroup) and len(group.members) > 1 else None

    @property
    def snapshot_report(self) -> SnapshotReport | None:
        """What the last snapshot has cost this member; None: there are no snapshots."""
        return None if self._keeper is None else self._keeper.report

    @property
    def last_restore(self) -> Restored | None:
        """What the last division of a sharded state among other members has cost this one; None: there was none."""
        return None if self._sharded is None else self._sharded.restored

    def wait_for_snapshot(self) -> bool:
        """Waits for the end of a snapshot under way. Whether the last one is complete on all members; True without snapshots."""
        return self._keeper is None or self._keeper.settle()

    def fence(self) -> None:
        """Waits until a snapshot under way has copied the tensors. Optimizers do so by themselves; anything else that changes
        parameters must call it before."""
        if self._keeper is not None:
            self._keeper.fence()

    def close(self) -> None:
        """Drops the snapshots of this process, at the end of the training; a process that ends without it leaves them.

        The signal of `leaves_on` gets its handler back, unless it has come; a Notice stays.
        """
        if self._keeper is not None:
            self._keeper.close()
        if self._made_notice is not None:
            self._made_notice._close_unless_given()

    @property
    def _keeper(self) -> Keeper | None:
        return None if self._sharded is None else self._sharded.keeper

    def _terms(self, group: ProcessGroup) -> Terms:
        """What all members need alike."""
        settings: dict[str, Any] = {"model": "replicated" if self._sharded is None else "sharded (FSDP2)", **self._settings}
        if self._sharded is None:  # else a loss makes groups with replicas strict
            settings |= {"membership": group.membership, "stands_in": group._launcher.stands_in}
        sharded = parameters_of(self._training.model) if self._sharded is not None else None
        return joined([Terms(settings, {}), self._training.terms(sharded), terms_of_values(self._values)])

    # ---- data ----

    def _data(self) -> list[Any]:
        """The values that hand out samples (`pccl.data`), in the same order on all members."""
        return [value for _, value in sorted(self._values.items()) if hasattr(value, "commit_step")]

    def _seal(self) -> None:
        """The optimizer has made a step: with the samples that the program has got by now."""
        for one in self._data():
            one.seal()

    def _commit_data(self, journal: Journal, group: ProcessGroup, seconds: float) -> bool:
        """Commits the samples of the steps since the last sync; whether a member was lost. In the first sync nothing."""
        if not self._deals:
            return False
        if not self._training.optimizers:
            self._seal()
        lost = [journal.once(one.commit_step, group.communicator, seconds) for one in self._data()]
        return any(lost)

    def _commit(self) -> bool:
        """Commits the samples between two calls of `sync`. Returns whether a member was lost, whose samples others get then."""
        group = group_of_all("Elastic")
        with made_on_cpu(), self._journal.call(group.communicator, "commit") as journal:
            lost = self._commit_data(journal, group, group._timeout)
            if lost:
                self._deal_data(journal, group, group._timeout)
        return lost

    def _deal_data(self, journal: Journal, group: ProcessGroup, seconds: float, *, keeps_open: bool = True) -> None:
        """Deals out the samples that are left among the members who are there now."""
        for one in self._data():
            journal.once(functools.partial(one.sync, group.communicator, seconds, keeps_open=keeps_open))
        self._deals = True

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """The state of the model and of the optimizers as torch has it, and the values: plain values and tensors.

        Tensors are those of the training itself, not copies.
        """
        return {"step": self._progress(), **self._training.state_dict(), **self._told_values()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned. Call it before the first `sync`, in any of the processes.

        The run begins with the state of the process that has the highest `step`, the value, or has made most calls of `sync`;
        one whose own gives way logs a warning. A process that joins a run that goes on gets the state of the members.

        ValueError, RuntimeError: the state is that of another training; the model and the values are unspecified then.
        """
        lacks = sorted({"model", "optimizers", "values", "steps"} - state.keys())
        if lacks:
            raise ValueError(f"Elastic: the state lacks {', '.join(lacks)}; load what Elastic.state_dict or Elastic.save made")
        require_same_names(self._values, state["values"], "value")
        self._training.load_state_dict(state)
        self._take_told_values(state)
        self._replicated.loaded = self._origin = self._progress()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `state_dict` to the folder `path`, as `pccl.state.save` does. One process is enough; others need other paths.

        After a crash the folder is the old one or the new one.
        """
        save(self.state_dict(), path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Loads what `save` wrote, like `load_state_dict`. FileNotFoundError: there is none. CheckpointError: it is damaged."""
        self.load_state_dict(load(path))

    # ---- values ----

    def _objects(self) -> Mapping[str, Any]:
        return self._values

    def _told_values(self) -> dict[str, Any]:
        told = {name: (True, object_state(one)) if has_state(one) else (False, one) for name, one in self._values.items()}
        return {"steps": self._steps, "values": told}

    def _take_told_values(self, told: Mapping[str, Any]) -> None:
        require_same_names(self._values, told["values"], "value")
        for name, (is_object, content) in told["values"].items():
            if is_object != has_state(self._values[name]):
                raise ValueError(f"value {name!r} has the method state_dict in some processes only")
            if is_object:
                load_object_state(self._values[name], content, f"value {name!r}")
            else:
                self._values[name] = content
        self._steps = told["steps"]

    def _progress(self) -> int:
        """The step by which checkpoints are compared: the value `step`, or else the number of calls of `sync` of the run."""
        step = self._values.get("step")
        return step if type(step) is int and 0 <= step < 1 << 62 else self._steps

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"{name!r} is not one of the values given to Elastic: {', '.join(values) or 'there are none'}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        if name in own or (name.startswith("_") and "_notice" not in own):  # which the constructor sets last
            object.__setattr__(self, name, value)
        elif name in self._values:
            self._values[name] = value
        else:
            raise AttributeError(f"{name!r} is not one of the values given to Elastic: Elastic(model, optimizer, {name}=...)")


def _weak(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """A bound method, for a part of its object that lives no longer: a dropped Elastic is gone at once, with its model."""
    weak = weakref.WeakMethod(method)

    def call(*given: Any) -> _Result:
        found = weak()
        assert found is not None, "a part of an Elastic was used after it"
        return found(*given)

    return call


publish(globals())
