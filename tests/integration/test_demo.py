"""The demo: its parts alone, then the whole of it with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from pccl import Attribute, PCCLError, Result  # noqa: E402  # after the skips
from pccl.demo import run_demo  # noqa: E402
from pccl.demo.corpus import MIN_CHARACTERS, UNKNOWN, CorpusError, load_corpus  # noqa: E402
from pccl.demo.model import Shape, TrainingState, generate, validation_loss  # noqa: E402
from pccl.demo.plot import plot  # noqa: E402
from pccl.demo.reports import Finished, Halted, Ready, Recovered, Report, Stepped, Task  # noqa: E402
from pccl.demo.run import Kill, Options, Run  # noqa: E402
from pccl.demo.worker import average  # noqa: E402

torch.set_num_threads(1)  # these models are too small for more
SMALL = Shape(vocabulary=20, context=8, width=16, heads=2, layers=1, batch=4)


def options(**changes: Any) -> Options:
    fields: dict[str, Any] = {
        "peers": 3,
        "steps": 20,
        "kill_step": 10,
        "kill_peer": 2,
        "seed": 1,
        "threads": 1,
        "data": None,
        "out": Path("out"),
    }
    return Options(**{**fields, **changes})


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


# --- reports and the verdict


def test_reports_and_tasks_survive_the_wire() -> None:
    task = Task(index=1, peers=3, master="h:1", steps=5, seed=0, threads=1, report_fd=9, halt_in_step=2)
    assert Task.from_json(task.to_json()) == task
    report = Recovered(step=3, failed=2, buckets=4, world=2, at=1.5)
    assert Report.from_line(report.to_line()) == report


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"kind": "stepped"}', '{"kind": "other"}', "noise"])
def test_a_line_that_is_no_report_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Report.from_line(line)


def stepped(step: int, loss: float, **changes: Any) -> Stepped:
    fields: dict[str, Any] = {"world": 2, "tokens": 100, "tx_bytes": 10, "rx_bytes": 20, "digest": None}
    return Stepped(step=step, loss=loss, **{**fields, **changes})


def finished_run(spoil: Callable[[Run], None] | None = None) -> Run:
    """A run of 20 steps as it should be: loss from 4 to 2, peer 2 killed in step 10."""
    run = Run(options())
    for peer in run.peers:
        run.take(peer, Ready(world=3, parameters=1000, validation=4.0), 0.0)
        for step in range(1, 21 if peer.index < 2 else 10):
            run.take(peer, stepped(step, 4 - step / 10, digest=f"d{step}"), float(step))
    run.take(run.peers[2], Halted(step=10, launched=2, buckets=4), 10.0)
    run.peers[2].status = "killed"
    run.kill = Kill(step=10, at=10.0)
    for peer in run.peers[:2]:
        run.take(peer, Recovered(step=10, failed=2, buckets=4, world=2, at=10.05), 10.1)
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
        (_fail, ["every survivor"]),
        (_differ_early, ["all peers hold"]),
        (_differ_at_end, ["all peers hold"]),
        (_learn_nothing, ["the loss fell"]),
    ],
)
def test_verdict(spoil: Callable[[Run], None] | None, broken: list[str]) -> None:
    checks = finished_run(spoil).checks()
    failed = [check.claim for check in checks if not check.holds]
    assert len(checks) == 4
    assert len(failed) == len(broken)
    assert all(claim.startswith(start) for claim, start in zip(failed, broken, strict=True))


def test_a_run_that_never_began_fails_every_check() -> None:
    run = Run(options())
    assert not any(check.holds for check in run.checks())


@pytest.mark.parametrize("run", [finished_run(), Run(options())], ids=["finished", "empty"])
def test_plot_writes_a_png(tmp_path: Path, run: Run) -> None:
    plot(run, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


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
    assert "--kill-step" in capsys.readouterr().out


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
    return [int(pid) for pid in line.split("processes")[1].split(",")]


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
def test_training_survives_the_kill(tmp_path: Path, peers: int, victim: int, news: str) -> None:
    arguments = ["--peers", str(peers), "--steps", "24", "--kill-step", "8", "--kill-peer", str(victim)]
    with start(tmp_path, *arguments) as demo:
        output = demo.communicate(timeout=280)[0]
    assert demo.returncode == 0, output
    assert f"peer {victim} killed with SIGKILL in step 8, 2 of its 4 reduces launched" in output
    assert output.count(news) == peers - 1
    assert output.rstrip().endswith("PASSED")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["passed"]
    assert len(summary["losses"]) == 24
    assert len(summary["recovered_ms"]) == peers - 1
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert all(gone(pid) for pid in pids_of(output.splitlines()[0]))


@pytest.mark.timeout(200)
def test_without_a_kill(tmp_path: Path) -> None:
    with start(tmp_path, "--peers", "2", "--steps", "20", "--no-kill") as demo:
        output = demo.communicate(timeout=180)[0]
    assert demo.returncode == 0, output
    assert "killed" not in output


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGTERM, "the peers are processes"), (signal.SIGINT, "peers are connected")]
)
def test_signals_end_everything(tmp_path: Path, number: signal.Signals, line: str) -> None:
    with start(tmp_path, "--peers", "2", "--steps", "10000") as demo:
        assert demo.stdout is not None
        pids: list[int] = []
        for printed in demo.stdout:
            pids = pids or pids_of(printed)
            if line in printed:
                break
        demo.send_signal(number)
        began = time.monotonic()
        output = demo.communicate(timeout=60)[0]
        took = time.monotonic() - began
    assert demo.returncode == 128 + number
    assert f"ended by {number.name}" in output
    assert took < 5
    assert all(gone(pid) for pid in pids)


@pytest.mark.timeout(200)
def test_a_peer_that_fails_fails_the_run(tmp_path: Path) -> None:
    with start(tmp_path, "--steps", "30", "--no-kill") as demo:
        assert demo.stdout is not None
        pids = pids_of(demo.stdout.readline())
        for printed in demo.stdout:
            if "peers are connected" in printed:
                break
        os.kill(pids[1], signal.SIGKILL)
        output = demo.communicate(timeout=180)[0]
    assert demo.returncode == 1, output
    assert "peer 1 ended with status -9" in output
    assert "FAILED every survivor made all its steps" in output
