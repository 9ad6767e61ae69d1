"""The demo: its parts alone, then the whole of it with real processes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from pccl import Attribute, CallAgainError, PCCLError, Result, SharedState, TensorInfo  # noqa: E402  # after the skips
from pccl.demo import run_demo  # noqa: E402
from pccl.demo.corpus import MIN_CHARACTERS, UNKNOWN, CorpusError, load_corpus  # noqa: E402
from pccl.demo.display import draw, plot  # noqa: E402
from pccl.demo.model import Shape, TrainingState, generate, validation_loss  # noqa: E402
from pccl.demo.reports import (  # noqa: E402
    Admitted,
    Finished,
    Halted,
    Joined,
    Missed,
    Prepared,
    Ready,
    Recovered,
    Report,
    Stepped,
    Task,
)
from pccl.demo.run import Kill, Options, Run  # noqa: E402
from pccl.demo.worker import Batches, average, sync  # noqa: E402

torch.set_num_threads(1)  # these models are too small for more
SMALL = Shape(vocabulary=20, context=8, width=16, heads=2, layers=1, batch=4)


def options(**changes: Any) -> Options:
    fields: dict[str, Any] = {
        "peers": 3,
        "steps": 20,
        "kill_step": 10,
        "kill_peer": 2,
        "join_step": 15,
        "kill_at_join": None,
        "seed": 1,
        "threads": 1,
        "data": None,
        "out": Path("out"),
    }
    return Options(**{**fields, **changes})


def task(**changes: Any) -> Task:
    fields: dict[str, Any] = {"index": 0, "peers": 3, "shard": 0, "shards": 3, "master": "h:1", "steps": 9, "seed": 0}
    return Task(**{**fields, "threads": 1, **changes})


# --- text


def test_standard_library_text_is_long_and_english() -> None:
    corpus = load_corpus(None)
    assert len(corpus.codes) > 300_000
    assert "the statement" in corpus.decode(corpus.codes)


def test_shards_and_held_out_part_cover_the_text_once() -> None:
    corpus = load_corpus(None)
    shards = [corpus.shard(index, 3) for index in range(3)]
    assert [code for shard in shards for code in shard] + corpus.held_out == corpus.codes


def test_rare_and_foreign_characters_become_unknown(tmp_path: Path) -> None:
    text = "abc" * MIN_CHARACTERS + "".join(chr(0x4E00 + index) for index in range(400))
    (tmp_path / "text").write_text(text, encoding="utf-8")
    corpus = load_corpus(str(tmp_path / "text"))
    assert len(corpus.vocabulary) == 257
    assert corpus.decode(corpus.encode("a\u9fff")) == "a" + UNKNOWN


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"short", "needs at least"), (b"\xff\xfe" * MIN_CHARACTERS, "not UTF-8")],
)
def test_unusable_text_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        load_corpus(str(path))


# --- model


def test_parameters_and_gradients_are_views_of_the_flat_tensors() -> None:
    state = TrainingState(SMALL, seed=1, steps=10)
    state.compute_gradients(torch.randint(20, (4, 9)))
    bounds = (state.weights.data_ptr(), state.weights.data_ptr() + 4 * state.weights.numel())
    for parameter in state.model.parameters():
        assert bounds[0] <= parameter.data_ptr() < bounds[1]
    flat = torch.cat([parameter.grad.flatten() for parameter in state.model.parameters()])
    assert torch.equal(flat, state.gradients)
    assert flat.abs().sum() > 0


def test_buckets_cover_the_gradients_in_place() -> None:
    state = TrainingState(SMALL, seed=1, steps=10)
    buckets = state.buckets(4)
    for number, bucket in enumerate(buckets):
        bucket.fill_(number)
    assert sum(len(bucket) for bucket in buckets) == len(state.gradients)
    assert state.gradients[0] == 0
    assert state.gradients[-1] == 3


def test_same_seed_and_gradients_give_the_same_bytes() -> None:
    states = [TrainingState(SMALL, seed=7, steps=10) for _ in range(2)]
    windows = torch.randint(20, (4, 9))
    for _ in range(3):
        for state in states:
            state.compute_gradients(windows)
            state.apply_gradients()
    assert states[0].digest() == states[1].digest()
    assert states[0].digest() != TrainingState(SMALL, seed=8, steps=10).digest()


def receive(target: SharedState, source: SharedState) -> None:
    """What a sync does to a newcomer, without a network."""
    source._collect("test")
    for to, of in zip(target._tensor_infos, source._tensor_infos, strict=True):
        assert (to.name, to.numel, to.dtype) == (of.name, of.numel, of.dtype)
        ctypes.memmove(to.data_ptr, of.data_ptr, of.numel * of.dtype.itemsize)
    target._restore()


def test_who_has_received_the_state_goes_on_exactly() -> None:
    corpus = load_corpus(None)
    shape = Shape(vocabulary=len(corpus.vocabulary), context=8, width=16, heads=2, layers=1, batch=4)
    batches = Batches(corpus, task(index=1, shard=1), shape)
    old = TrainingState(shape, seed=7, steps=10)

    def train(state: TrainingState, batches: Batches, steps: int) -> None:
        for _ in range(steps):
            state.compute_gradients(batches.draw())
            state.apply_gradients()

    train(old, batches, 3)
    new = TrainingState(shape, seed=8, steps=10)
    random = torch.get_rng_state()  # one generator per process: here both states have it in turn
    new.digest()
    torch.set_rng_state(random)
    old_digest = old.digest()
    receive(new.shared, old.shared)
    assert (new.step, new.digest()) == (3, old_digest)
    ends = []
    for state in (old, new):
        torch.set_rng_state(random)
        train(state, Batches(corpus, task(index=3, shard=1), shape), 4)
        ends.append(state.digest())
    assert ends[0] == ends[1]


def test_the_shards_of_a_step_are_drawn_apart_but_from_the_same_random_numbers() -> None:
    corpus = load_corpus(None)
    shape = Shape(vocabulary=len(corpus.vocabulary), batch=4)
    drawn, after = [], []
    for shard in range(3):
        torch.manual_seed(5)
        drawn.append(Batches(corpus, task(shard=shard), shape).draw())
        after.append(torch.get_rng_state())
    assert len({tuple(batch.flatten().tolist()) for batch in drawn}) == 3
    assert torch.equal(after[0], after[1])
    assert torch.equal(after[0], after[2])


def test_model_learns_a_repeated_text() -> None:
    state = TrainingState(SMALL, seed=1, steps=400)
    text = torch.arange(2000) % 20
    before = validation_loss(state.model, text, windows=16)
    for _ in range(400):
        starts = torch.randint(len(text) - 9, (4,))
        state.compute_gradients(text[starts[:, None] + torch.arange(9)])
        state.apply_gradients()
    assert validation_loss(state.model, text, windows=16) < before / 10
    assert generate(state.model, [3, 4, 5], length=5, seed=1) == [6, 7, 8, 9, 10]


# --- averaging, with a communicator that loses peers on command


class ScriptedComm:
    """Doubles each buffer it reduces; ``failures`` lists, per round, the tags that end with a loss."""

    def __init__(self, world: int, failures: list[set[int]], status: Result = Result.RANK_CONNECTION_LOST) -> None:
        self.world, self.failures, self.status = world, failures, status
        self.launched: list[list[int]] = []
        self.waited: set[int] = set()

    def get_attribute(self, attribute: Attribute) -> int:
        return self.world

    def all_reduce_async(self, send: Any, recv: Any, *, op: Any, tag: int) -> Any:
        if self.world < 2:
            raise PCCLError(Result.TOO_FEW_PEERS, "pcclAllReduceAsync")
        assert send is recv
        if not self.launched or self.waited == set(self.launched[-1]):
            self.launched.append([])
            self.waited = set()
        self.launched[-1].append(tag)
        return SimpleNamespace(wait=lambda: self._wait(recv, tag))

    def _wait(self, buffer: Any, tag: int) -> Any:
        self.waited.add(tag)
        number = len(self.launched) - 1
        if number < len(self.failures) and tag in self.failures[number]:
            self.world -= tag == min(self.failures[number])
            return False, self.status.value, SimpleNamespace(tx_bytes=0, rx_bytes=0)
        buffer *= 2
        return True, 0, SimpleNamespace(tx_bytes=3, rx_bytes=4)


@pytest.mark.parametrize(
    ("world", "failures", "launched", "left", "reduced"),
    [
        (3, [], [[0, 1, 2, 3]], 3, [0, 1, 2, 3]),
        (3, [{1, 3}], [[0, 1, 2, 3], [1, 3]], 2, [0, 1, 2, 3]),
        (4, [{0, 1, 2, 3}, {2}], [[0, 1, 2, 3], [0, 1, 2, 3], [2]], 2, [0, 1, 2, 3]),
        (2, [{2, 3}], [[0, 1, 2, 3]], 1, [0, 1]),
        (1, [], [], 1, []),
    ],
)
def test_average_repeats_exactly_what_failed(
    world: int, failures: list[set[int]], launched: list[list[int]], left: int, reduced: list[int]
) -> None:
    comm: Any = ScriptedComm(world, failures)
    buckets = [torch.ones(5) for _ in range(4)]
    result = average(comm, buckets)
    assert comm.launched == launched
    assert [int(bucket[0]) for bucket in buckets] == [2 if tag in reduced else 1 for tag in range(4)]
    assert (result.world, result.failed) == (left, sum(len(tags) for tags in failures))
    assert (result.tx_bytes, result.rx_bytes) == (3 * len(reduced), 4 * len(reduced))


def test_average_raises_other_failures_after_waiting() -> None:
    comm: Any = ScriptedComm(3, [{0}], Result.INVALID_ARGUMENT)
    with pytest.raises(PCCLError, match="INVALID_ARGUMENT"):
        average(comm, [torch.ones(5)])


class NothingToShare:
    """A group in which nobody has all of the state, until the world has one more peer, if it ever does."""

    def __init__(self, worlds: list[int]) -> None:
        self.worlds = worlds

    def sync_shared_state(self, shared: SharedState) -> str:
        if len(self.worlds) > 1:
            raise CallAgainError(Result.NO_SHARED_STATE_AVAILABLE, "pcclSynchronizeSharedState")
        return "synced"

    def update_topology(self) -> None:
        self.worlds.pop(0)

    def get_attribute(self, attribute: Attribute) -> int:
        return self.worlds[0]


def test_a_sync_without_a_holder_is_repeated_but_not_by_a_newcomer_alone() -> None:
    shared = SharedState([TensorInfo.from_torch(torch.zeros(1), "w")])
    comm: Any = NothingToShare([3, 2, 3])
    assert sync(comm, shared) == "synced"
    alone: Any = NothingToShare([2, 1, 1])
    with pytest.raises(CallAgainError):
        sync(alone, shared)


# --- reports and the verdict


def test_reports_and_tasks_survive_the_wire() -> None:
    sent = task(halt_in_step=2, newcomer=True)
    assert Task.from_fields(json.loads(json.dumps(sent.to_fields()))) == sent
    reports = [Recovered(step=3, failed=2, buckets=4, world=2, at=1.5), Prepared(), Missed(), joined(), admitted()]
    for report in [*reports, Halted(step=None, place="here")]:
        assert Report.from_line(report.to_line()) == report


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"kind": "stepped"}', '{"kind": "other"}', "noise"])
def test_a_line_that_is_no_report_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Report.from_line(line)


def stepped(step: int, loss: float, **changes: Any) -> Stepped:
    fields: dict[str, Any] = {"world": 2, "tokens": 100, "tx_bytes": 10, "rx_bytes": 20, "digest": None}
    return Stepped(step=step, loss=loss, **{**fields, **changes})


def joined(**changes: Any) -> Joined:
    fields: dict[str, Any] = {"step": 15, "world": 3, "rx_bytes": 5 << 20, "leaves": 46, "donors": 2, "digest": "d15"}
    return Joined(**{**fields, "connect_seconds": 0.05, "sync_seconds": 0.004, **changes})


def admitted(**changes: Any) -> Admitted:
    fields: dict[str, Any] = {"step": 15, "world": 3, "held_seconds": 0.012, "tx_bytes": 5 << 19, "digest": "d15"}
    return Admitted(**{**fields, **changes})


def finished_run(spoil: Callable[[Run], None] | None = None, **changes: Any) -> Run:
    """A run of 20 steps as it should be: loss from 4 to 2, peer 2 killed in step 10, peer 3 comes after step 15."""
    run = Run(options(**changes))
    for peer in run.peers:
        run.take(peer, Prepared(), 0.0)
    for peer in run.peers[:3]:
        run.take(peer, Ready(world=3, parameters=1000, validation=4.0), 0.0)
        for step in range(1, 15 if peer.index < 2 else 10):
            run.take(peer, stepped(step, 4 - step / 10, digest=f"d{step}"), float(step))
    run.take(run.peers[2], Halted(step=10, place="2 of its 4 reduces launched"), 10.0)
    run.peers[2].status = "killed"
    run.kill = Kill(step=10, at=10.0)
    for peer in run.peers[:2]:
        run.take(peer, Recovered(step=10, failed=2, buckets=4, world=2, at=10.05), 10.1)
        run.take(peer, admitted(), 15.0)
    run.take(run.peers[3], joined(), 15.0)
    for peer in (run.peers[0], run.peers[1], run.peers[3]):
        for step in range(15, 21):
            run.take(peer, stepped(step, 4 - step / 10, digest=f"d{step}", world=3), float(step))
        run.take(peer, Finished(step=20, digest="d20", validation=2.0, prompt="a", sample="b"), 21.0)
        peer.status = "finished"
    if spoil is not None:
        spoil(run)
    return run


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


# --- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "1"], "--peers must be"),
        (["--steps", "5"], "--steps must be at least"),
        (["--steps", "many"], "invalid int value"),
        (["--steps", "30", "--kill-step", "31"], "--kill-step must be from 1 to 30"),
        (["--kill-step", "0"], "--kill-step must be"),
        (["--kill-peer", "3"], "--kill-peer must be from 0 to 2"),
        (["--no-kill", "--kill-step", "3"], "excludes"),
        (["--no-join", "--join-step", "30"], "--no-join excludes"),
        (["--no-join", "--kill-at-join", "newcomer"], "--no-join excludes"),
        (["--steps", "30", "--join-step", "15"], "--join-step must be from 16 (after the kill) to 25, not 15"),
        (["--steps", "30", "--no-kill", "--join-step", "26"], "--join-step must be from 1 to 25, not 26"),
        (["--steps", "30", "--kill-step", "26"], "leaves no time to join: give an earlier --kill-step, or --no-join"),
        (["--peers", "2", "--kill-at-join", "survivor"], "needs two peers that live until then"),
        (["--kill-at-join", "everybody"], "invalid choice"),
        (["--threads", "0"], "--threads must be"),
        (["--data", "/no/such/file"], "cannot read /no/such/file: No such file"),
        (["--out", "/dev/null/x"], "cannot write to /dev/null/x"),
        (["--nonsense"], "unrecognized"),
    ],
)
def test_bad_input_is_named_and_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_demo(arguments) == 2
    assert message in capsys.readouterr().err


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_demo([]) == 2
    assert "pip install 'pccl[demo]'" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "--kill-step" in shown
    assert "--join-step" in shown


# --- the whole


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    code = "import sys; from pccl.demo import run_demo; sys.exit(run_demo(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pids_of(line: str) -> list[int]:
    return [int(pid) for pid in line.split("processes")[1].split(";")[0].split(",")]


def summary_of(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("peers", "victim", "news"),
    [(3, 2, "repeated with world size 2"), (3, 0, "repeated with world size 2"), (2, 1, "it is alone")],
    ids=["last", "first", "left-alone"],
)
def test_training_survives_the_kill_and_a_new_peer_joins(tmp_path: Path, peers: int, victim: int, news: str) -> None:
    arguments = ["--peers", str(peers), "--steps", "24", "--kill-step", "8", "--kill-peer", str(victim), "--join-step", "12"]
    with start(tmp_path, *arguments) as demo:
        output = demo.communicate(timeout=280)[0]
    assert demo.returncode == 0, output
    assert f"peer {victim} killed with SIGKILL in step 8, 2 of its 4 reduces launched" in output
    assert output.count(news) == peers - 1
    assert output.rstrip().endswith("PASSED")
    assert f"peer {peers} joined for step" in output
    assert "was held up for" in output
    assert f"{peers} peers with hash" in output
    summary = summary_of(tmp_path)
    assert summary["passed"]
    assert len(summary["losses"]) == 24
    assert len(summary["recovered_ms"]) == peers - 1
    join = summary["join"]
    assert 11 <= join["step"] < 20
    assert join["donors"] == peers - 1
    assert join["rx_bytes"] > 4_000_000
    assert len(join["held_up_ms"]) == peers - 1
    living = {digest for index, digest in summary["digests"].items() if index != str(victim)}
    assert len(living) == 1
    assert f"peer {peers} joined in step {join['step'] + 1}".encode() in (tmp_path / "loss.png").read_bytes()
    assert all(gone(pid) for pid in pids_of(output.splitlines()[0]))


@pytest.mark.timeout(600)
def test_a_newcomer_killed_while_it_gets_the_state_leaves_no_trace(tmp_path: Path) -> None:
    # Two peers, whose sums do not depend on who joined first: until the newcomer comes, nothing has touched the second run.
    arguments = ["--steps", "24", "--peers", "2", "--no-kill", "--kill-at-join", "newcomer"]
    digests = []
    for step in ("6", "18"):
        with start(tmp_path / step, *arguments, "--join-step", step) as demo:
            output = demo.communicate(timeout=280)[0]
        assert demo.returncode == 0, output
        assert "peer 2 killed with SIGKILL let in, after the others have waited" in output
        assert "ok     the new peer died while it joined" in output
        assert b"peer 2 killed while it joined" in (tmp_path / step / "loss.png").read_bytes()
        digests.append(summary_of(tmp_path / step)["digests"]["0"])
    assert digests[0] == digests[1]


@pytest.mark.timeout(300)
def test_a_survivor_killed_while_a_newcomer_gets_the_state(tmp_path: Path) -> None:
    with start(tmp_path, "--steps", "24", "--kill-step", "6", "--kill-at-join", "survivor") as demo:
        output = demo.communicate(timeout=280)[0]
    assert demo.returncode == 0, output
    assert "peer 0 killed with SIGKILL in step" in output
    assert "peer 0 was killed meanwhile; peer 3 joined for step" in output
    assert "2 peers with hash" in output
    assert summary_of(tmp_path)["join"]["donors"] == 1


@pytest.mark.timeout(300)
def test_a_newcomer_killed_while_it_connects_fails_only_its_own_checks(tmp_path: Path) -> None:
    with start(tmp_path, "--steps", "40", "--no-kill", "--join-step", "10") as demo:
        assert demo.stdout is not None
        pids = pids_of(demo.stdout.readline())
        for printed in demo.stdout:
            if "peer 3 connects" in printed:
                os.kill(pids[3], signal.SIGKILL)
                break
        output = demo.communicate(timeout=280)[0]
    assert demo.returncode == 1, output
    assert "peer 3 ended with status -9" in output
    assert "ok     all peers hold" not in output  # peer 3 is missing
    assert "3 of 4 at step 40" in output
    digests = summary_of(tmp_path)["digests"]
    assert len({digests[str(index)] for index in range(3)}) == 1


@pytest.mark.timeout(200)
def test_without_a_kill_and_a_join(tmp_path: Path) -> None:
    with start(tmp_path, "--peers", "2", "--steps", "20", "--no-kill", "--no-join") as demo:
        output = demo.communicate(timeout=180)[0]
    assert demo.returncode == 0, output
    assert "killed" not in output
    assert "joined" not in output


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGTERM, "the peers are processes"),
        (signal.SIGINT, "peer 2 connects"),
    ],
)
def test_signals_end_everything(tmp_path: Path, number: signal.Signals, line: str) -> None:
    with start(tmp_path, "--peers", "2", "--steps", "10000", "--no-kill", "--join-step", "4") as demo:
        assert demo.stdout is not None
        pids: list[int] = []
        for printed in demo.stdout:
            pids = pids or pids_of(printed)
            if line in printed:
                break
        demo.send_signal(number)
        output = demo.communicate(timeout=60)[0]
    assert demo.returncode == 128 + number
    assert f"ended by {number.name}" in output
    assert all(gone(pid) for pid in pids)


@pytest.mark.timeout(200)
def test_a_peer_that_fails_fails_the_run(tmp_path: Path) -> None:
    with start(tmp_path, "--steps", "30", "--no-kill", "--no-join") as demo:
        assert demo.stdout is not None
        pids = pids_of(demo.stdout.readline())
        for printed in demo.stdout:
            if "peers are connected" in printed:
                break
        os.kill(pids[1], signal.SIGKILL)
        output = demo.communicate(timeout=180)[0]
    assert demo.returncode == 1, output
    assert "peer 1 ended with status -9" in output
    assert "FAILED every peer that lives made all its steps" in output
