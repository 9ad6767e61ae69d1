"""Newcomers in a training with DistributedDataParallel that goes on."""

from __future__ import annotations

import pytest
from trainers import Job

STEPS = 6


@pytest.mark.parametrize(
    ("options", "hook"),
    [
        ({}, ""),
        ({"bucket_cap_mb": 0.01}, ""),
        ({"bucket_cap_mb": 0.01, "static_graph": True}, ""),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, ""),
        ({"bucket_cap_mb": 0.01}, "python"),
        ({"bucket_cap_mb": 0.01}, "builtin"),
    ],
)
def test_a_newcomer_takes_part_from_the_next_step(tmp_path, options, hook):
    with Job(tmp_path, options=options, hook=hook) as job:
        old = job.start(2)
        for trainer in old:
            trainer.tell("train", STEPS)
        assert [trainer.answer() for trainer in old] == [2, 2]
        fresh = job.join(job.masters())
        for trainer in [*old, fresh]:
            trainer.tell("train", 2 * STEPS, None, 0.02)
        assert [trainer.answer() for trainer in old] == [3, 3]
        assert fresh.answer() == 3
        steps = job.steps()
        assert list(steps) == list(range(2 * STEPS))
        assert [len(steps[step]) for step in steps][-1] == 3
        assert steps[2 * STEPS - 1][0]["contributors"] == [3] * 8
        for trainer in [*old, fresh]:
            trainer.ask("leave")
