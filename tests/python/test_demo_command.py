"""The command line of `pccl demo`."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")


from pccl.demo import run_demo  # noqa: E402


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
