"""What a user asks for, and gets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pccl._exports import publish
from pccl.state._snapshots.code import MEMBERS_MAX
from pccl.state._snapshots.placement import Redundancy

JOB_VARIABLES = (("TORCHELASTIC_RUN_ID",), ("SLURM_JOB_ID", "SLURM_STEP_ID"))
"""Name a job, so that a restarted process finds the memory that its predecessor left on the host."""


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """How often the state is copied into the memory of peers, and how many losses it survives.

    `every`: a snapshot when the value `step` of Elastic has grown by so many since the last one, or without such a value after so
    many calls of `sync`. A loss costs at most as many steps and those that a snapshot takes, which are at most as many, too.

    `copies`: each member's part is kept by so many others. `code=(k, m)`: members form groups of k + m or more, and each group
    survives the loss of any m of its members; each keeps about m / k times its own part for the others. One of both; by default
    `copies=1`. Copies and codes lie on as many different hosts as there are.

    Replicas (HSDP) on other hosts count as copies. Only blocks of 64 KiB that have changed are sent. After a change of members
    each process also keeps its old part until a snapshot is complete. If a process cannot copy its part, no snapshot is taken,
    and the log says why. If members differ in a tensor that they all have whole, or state cannot be placed, the next `sync`
    raises ProtectionError on all. Without snapshots, a part that no replica has any more is a StateLostError.

    `name` names the run on each host: a process that is started again finds there what its predecessor has left. By default it is
    the id of the job, as torchrun or Slurm give it, or else the address of the master. `linger`: for how many seconds memory is
    kept on a host without a process of the run. `holder=False`: snapshots end with their process.

    `on_failure(error, steps)`: called by `sync` or `Communicator.snapshot`, from the third snapshot in a row on that fails, or
    whose pieces the holder does not get; `steps` would be lost now. Without it these raise ProtectionError. If the reason lasts,
    as that of state that cannot be placed, `sync` raises it in any case, and at once.

    ValueError: numbers out of range.
    """

    every: int = 50
    copies: int | None = None
    code: tuple[int, int] | None = None
    name: str | None = None
    linger: float = 900.0
    holder: bool = True
    on_failure: Callable[[Exception, int], object] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:
            raise ValueError(f"every must be 1 or more steps, not {self.every!r}")
        if self.copies is not None and self.code is not None:
            raise ValueError("give copies or code, not both")
        if self.copies is not None and (type(self.copies) is not int or not 1 <= self.copies < MEMBERS_MAX):
            raise ValueError(f"copies must be from 1 to {MEMBERS_MAX - 1}, not {self.copies!r}")
        if not self.linger >= 0:
            raise ValueError(f"linger must be 0 or more seconds, not {self.linger!r}")
        if self.on_failure is not None and not callable(self.on_failure):
            raise TypeError(f"on_failure must be a function of an error and steps, not {self.on_failure!r}")
        if self.code is not None:
            good = len(self.code) == 2 and all(type(one) is int and one >= 1 for one in self.code)
            if not good or sum(self.code) > MEMBERS_MAX:
                raise ValueError(f"code must be (k, m), each 1 or more and at most {MEMBERS_MAX} together, not {self.code!r}")

    @property
    def redundancy(self) -> Redundancy:
        """Units and rows of parity of a stripe, as wanted."""
        return Redundancy(*self.code) if self.code is not None else Redundancy(1, self.copies or 1)

    def name_of_run(self, masters: str) -> str:
        """What the run is called on a host."""
        names = [".".join(os.environ.get(one, "") for one in variables).strip(".") for variables in JOB_VARIABLES]
        found = next((name for name in names if name not in ("", "none")), None)  # torchrun's "none" is that of many jobs
        return self.name or found or masters


class Restored(NamedTuple):
    """What `Communicator.restore` has restored."""

    step: int
    """Of the snapshot."""
    parts: dict[str, dict[str, tuple[str, tuple[int, ...]]]]
    """By the name of each part: types and shapes of its tensors by name. None where `shards` divide them."""


publish(globals())
