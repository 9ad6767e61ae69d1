"""`pccl top`: the table is readable at any width, and masters that do not answer are asked in turn."""

from __future__ import annotations

import io
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from reports import edge, member
from rich.console import Console

import pccl
from pccl import ConnectError, Diagnosis, JoinerReport, Result
from pccl._core.names import short
from pccl._run import keys as _keys
from pccl.cli import main, top

MEMBERS = tuple(member(number) for number in (0x12345678, 0x9ABCDEF0, 0xFEDCBA98))
EDGES = tuple(edge(a, b, 1e8) for a in MEMBERS for b in MEMBERS if a is not b)
RUN = Diagnosis((), MEMBERS, EDGES, 5.0)
NO_RUN = Diagnosis((), (), (), 5.0)


def table(width: int, diagnosis: Diagnosis = RUN) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(top.render(diagnosis, lambda: "no run"))
    assert text.getvalue().isascii()  # nothing is cut off, and PYTHONIOENCODING=ascii is no error
    return text.getvalue()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_narrow_table_has_all_ids_addresses_and_numbers():
    lines = rows(table(80))
    for one in MEMBERS:
        assert [short(one.uuid), "10.0.0.1:48149", "0.3", "3000.0", "90%", "0.0", "1", "0.7", "0.1"] in lines
    for link in EDGES:
        assert [short(link.member), short(link.other), "800", "50%", "25%", "0%", "2.00%", "80.0", "0.0"] in lines


def test_a_wide_table_has_all_columns():
    for width in (top.NARROW, top.PIPE_WIDTH):
        lines = rows(table(width))
        assert lines[0][-4:] == ["silent", "s", "group", "thread"]
        for one in MEMBERS:
            assert [short(one.uuid), "10.0.0.1:48149", "0.3", "3000.0", "90%", "0.0", "1", "0.7", "0.1", "0", "10%"] in lines


def test_a_table_without_room_folds_and_loses_nothing():
    for width in (50, 60, 79):
        assert Counter("".join(table(width).split())) == Counter("".join(table(80).split()))


def test_what_is_piped_has_room(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(top, "diagnose_run", lambda *_, **__: RUN)
    result = CliRunner().invoke(main, ["top", "--master", "127.0.0.1:1", "--once"])
    assert rows(result.output) == rows(table(top.PIPE_WIDTH))
    result = CliRunner().invoke(main, ["info", "--master", "127.0.0.1:1"])
    assert max(len(line) for line in result.output.splitlines()) > 80
    assert "…" not in result.output


class Answers:
    """Of masters, by their ports; None: none comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: dict[int, Diagnosis | None]) -> None:
        self.told = told
        self.asked: list[int] = []
        self.fails: pccl.PCCLError | None = None
        monkeypatch.setattr(top, "diagnose_run", self)

    def __call__(self, endpoint: pccl._core.address.Endpoint, keys: str | None = None, insecure: bool = False) -> Diagnosis:
        self.asked.append(endpoint.port)
        if self.fails is not None:
            raise self.fails
        if (told := self.told[endpoint.port]) is None:
            raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclDiagnose", f"no master answers at {endpoint}")
        return told


def test_the_master_that_serves_the_run_is_asked_first(monkeypatch):
    answers = Answers(monkeypatch, {1: None, 2: NO_RUN, 3: RUN})
    masters = top.Masters("127.0.0.1:1, 127.0.0.1:2,127.0.0.1:3")
    assert masters.ask() is RUN
    assert answers.asked == [1, 2, 3]
    assert masters.ask() is RUN
    assert answers.asked == [1, 2, 3, 3]
    answers.told = {1: RUN, 2: NO_RUN, 3: None}
    assert masters.ask() is RUN
    assert answers.asked == [1, 2, 3, 3, 3, 1]


def test_another_thread_always_finds_the_master_that_answered_last(monkeypatch):
    Answers(monkeypatch, {1: RUN})
    told: list[str] = []
    monkeypatch.setattr(top, "stacks_of", lambda endpoint, *_: f"of {endpoint.port}")
    masters = top.Masters("127.0.0.1:1")

    def look(*_: object) -> None:
        told.append(masters.stacks(RUN.members[0].uuid))

    sys.setprofile(look)  # at each call that `ask` makes, as another thread may
    try:
        masters.ask()
    finally:
        sys.setprofile(None)
    assert len(told) > 1
    assert set(told) == {"of 1"}


@pytest.mark.parametrize("result", [Result.MASTER_CONNECTION_FAILED, Result.INVALID_ARGUMENT])
def test_top_asks_again_whatever_the_later_answer(monkeypatch, result):
    """The files of keys may go with the run, as those of `pccl launch` do."""
    answers = Answers(monkeypatch, {1: RUN})

    def sleep(_seconds: float) -> None:
        if len(answers.asked) == 2:
            raise KeyboardInterrupt
        error = ConnectError if result is Result.MASTER_CONNECTION_FAILED else pccl.PCCLError
        monkeypatch.setattr(answers, "fails", error(result, "pcclDiagnose", "it has gone"))

    monkeypatch.setattr("pccl.cli.top.time.sleep", sleep)
    found = CliRunner().invoke(main, ["top", "--master", "127.0.0.1:1", "--json"])
    assert found.stderr == "it has gone: asking again\ninterrupted\n"


def test_masters_of_which_none_serves_a_run(monkeypatch):
    answers = Answers(monkeypatch, {1: NO_RUN, 2: NO_RUN})
    masters = top.Masters("127.0.0.1:1,127.0.0.1:2")
    assert masters.ask() is NO_RUN
    answers.told[1] = None
    with pytest.raises(ConnectError) as caught:
        masters.ask()
    assert caught.value.detail == "no master answers at 127.0.0.1:1; 127.0.0.1:2 answers and serves no such run"
    result = CliRunner().invoke(main, ["top", "--master", "127.0.0.1:1,127.0.0.1:2"])
    assert result.output == f"Error: {caught.value.detail}\n"
    answers.told[2] = None
    for command in ("top", "info"):
        result = CliRunner().invoke(main, [command, "--master", "127.0.0.1:1,127.0.0.1:2"])
        assert result.exit_code == 1
        assert "no master answers at 127.0.0.1:1; no master answers at 127.0.0.1:2" in result.output


@pytest.mark.parametrize(
    ("asked", "found", "only", "words"),
    [
        ("127.0.0.1:1", {}, "", "the master serves no run: it has no members yet, or this is a standby"),
        ("127.0.0.1:1/bret", {}, "", "the master serves no run bret: it has no members yet, or this is a standby"),
        (
            "127.0.0.1:1,127.0.0.1:2/bret",
            {"bert": 2, "": 1},
            "",
            "the masters serve no run bret; they serve one without a name (peers: 1), /bert (peers: 2): "
            "name one behind the address, as in HOST:PORT/RUN",
        ),
        ("127.0.0.1:1", {"bert": 2}, "", "no run without a name; it serves /bert (peers: 2): name one behind the address"),
        ("127.0.0.1:1/bert", {"": 2}, "", "no run bert; it serves one without a name (peers: 2): leave the name out"),
        ("127.0.0.1:1", {}, "bert", "no run bert: it has no members yet, or this is a standby; the keys are those of this run"),
        ("127.0.0.1:1/bert", {"bert": 0}, "", "the run bert has no members at the moment"),
        ("10.0.0.1:1/bert", {}, "", "other runs are shown to another host only if it has keys"),
    ],
)
def test_a_run_that_no_master_serves_is_named_with_those_that_they_serve(monkeypatch, tmp_path, asked, found, only, words):
    monkeypatch.delenv("PCCL_KEYS", raising=False)
    monkeypatch.setattr(top, "diagnose_run", lambda *_, **__: NO_RUN)
    monkeypatch.setattr(top, "runs_at", lambda *_, **__: found)
    keys = ["--keys", str(_keys.write_run_file(written(tmp_path), only)[0])] if only else []
    for command in (["top", "--once"], ["info"]):
        result = CliRunner().invoke(main, [*command, "--master", asked, *keys])
        assert words in " ".join(result.output.split()), result.output
    removal = CliRunner().invoke(main, ["drain", "somebody", "--master", asked, *keys])
    assert removal.exit_code == 2
    assert words in removal.output


def written(folder: Path) -> Path:
    _keys.write_files(folder / "run", _keys.new_keys())
    return folder / "run"


def test_a_spare_without_the_state_has_a_line():
    spare = JoinerReport(uuid=UUID(int=9), group=0, address="", does="waits as a spare", name="host-9", total_bytes=4_000_000)
    text = table(120, replace(RUN, joiners=(spare,)))
    assert "joins: host-9 waits as a spare: 0 of 4 MB\n" in text.replace(" \n", "\n")
    assert "missing protection at host-9: spare\n" in text.replace(" \n", "\n")
    assert "missing" not in table(120, replace(RUN, joiners=(replace(spare, done_bytes=3_000_000),)))


def test_missing_protections_and_the_cost_of_a_loss_have_lines():
    first = replace(MEMBERS[0], name="host-1", report={"steps_at_risk": 37.0, "without_holder": 1.0, "without_parity": 0.0})
    text = table(120, replace(RUN, members=(first, *MEMBERS[1:])))
    assert "a loss now would cost 37 steps" in text
    assert "missing protection at host-1: holder\n" in text.replace(" \n", "\n")
    assert "protection" not in table(120)
