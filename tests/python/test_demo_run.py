"""The verdict on a run of the demo, and its picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from demo_runs import finished_run, joined, options  # noqa: E402

from pccl.demo.display import draw, plot  # noqa: E402
from pccl.demo.run import (  # noqa: E402
    Missed,
    Run,
)


def _forget_kill(run: Run) -> None:
    run.kill = None


def _loss_unseen(run: Run) -> None:
    assert run.kill is not None
    del run.kill.recovered[1]


def _join_late(run: Run) -> None:
    run.join.joined = None


def _join_unseen(run: Run) -> None:
    del run.join.admitted[0]


def _receive_nothing(run: Run) -> None:
    run.join.joined = joined(rx_bytes=0)


def _join_with_another_hash(run: Run) -> None:
    run.digests[15][3] = "other"


def _stay_apart(run: Run) -> None:
    run.peers[3].world = 1


def _fail(run: Run) -> None:
    run.peers[0].status = "failed"


def _differ_early(run: Run) -> None:
    run.digests[5][1] = "other"


def _differ_at_end(run: Run) -> None:
    run.digests[20][1] = "other"


def _learn_nothing(run: Run) -> None:
    for losses in run.losses.values():
        losses.update(dict.fromkeys(losses, 4.0))


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (None, []),
        (_forget_kill, ["the kill happened"]),
        (_loss_unseen, ["the kill happened"]),
        (_join_late, ["a new peer got"]),
        (_join_unseen, ["a new peer got"]),
        (_receive_nothing, ["a new peer got"]),
        (_join_with_another_hash, ["a new peer got", "all peers hold"]),
        (_stay_apart, ["every peer that lives"]),
        (_fail, ["every peer that lives"]),
        (_differ_early, ["all peers hold"]),
        (_differ_at_end, ["all peers hold"]),
        (_learn_nothing, ["the loss fell"]),
    ],
)
def test_verdict(spoil: Callable[[Run], None] | None, broken: list[str]) -> None:
    checks = finished_run(spoil).checks()
    failed = [check.claim for check in checks if not check.holds]
    assert len(checks) == 5
    assert len(failed) == len(broken)
    assert all(claim.startswith(start) for claim, start in zip(failed, broken, strict=True))


def test_a_run_that_never_began_fails_every_check() -> None:
    run = Run(options())
    assert not any(check.holds for check in run.checks())


def test_the_verdict_tells_who_joined_when_with_how_much_and_who_waited() -> None:
    details = {check.claim.split(",")[0]: check.detail for check in finished_run().checks()}
    assert details["a new peer got the state of the others from their memory"] == (
        "peer 3 joined for step 16: 5.0 MiB in 46 pieces from the memory of 2 peers in 4 ms; "
        "2 of 2 others let it in, held up for 12 ms; the same hash on all then"
    )
    assert "3 peers with hash d20" in details["all peers hold bit-identical state (weights"]


def newcomer_killed(run: Run) -> None:
    run.join.joined = None
    run.join.killed = 3
    run.peers[3].status = "killed"
    del run.digests[15][3], run.digests[20][3]
    for peer in run.peers[:2]:
        peer.world = 2


def test_a_newcomer_that_dies_while_it_joins_hurts_nobody() -> None:
    checks = finished_run(newcomer_killed, kill_at_join="newcomer").checks()
    assert all(check.holds for check in checks)
    assert checks[1].claim.startswith("the new peer died")
    survived = finished_run(kill_at_join="newcomer").checks()
    assert [check.claim[:17] for check in survived if not check.holds] == ["the new peer died"]


def test_a_newcomer_that_comes_too_late_is_told_apart() -> None:
    run = Run(options())
    news = run.take(run.peers[3], Missed(), 1.0)
    assert news == "peer 3 came too late: nobody was left who had the state"
    assert run.peers[3].status == "missed"


@pytest.mark.parametrize(
    ("run", "marks"),
    [
        (finished_run(), ["peer 2 killed in step 10", "peer 3 joined in step 16"]),
        (finished_run(newcomer_killed), ["peer 2 killed in step 10", "peer 3 killed while it joined in step 16"]),
        (Run(options()), []),
    ],
    ids=["finished", "newcomer-killed", "empty"],
)
def test_plot_marks_kill_and_join(tmp_path: Path, run: Run, marks: list[str]) -> None:
    plot(run, tmp_path / "loss.png")
    content = (tmp_path / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    texts = [text.get_text() for text in draw(run).axes[0].texts]
    assert len(texts) == len(marks)
    for text, mark in zip(texts, marks, strict=True):
        assert text.startswith(mark)
        assert mark.encode() in content
