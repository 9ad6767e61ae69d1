"""The log of a stress run: read back, and compared with another one."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from stress_runs import OUTCOME, write_log

from pccl.cli import main
from pccl.stress.options import Recording, differences


def test_a_log_is_read_back(tmp_path):
    path = tmp_path / "log"
    faults, applied = write_log(path)
    recording = Recording.read(path)
    assert recording.options == {"peers": 4, "seed": 5}
    assert recording.faults == [*applied[:-1], faults[-1]]
    assert recording.outcome == OUTCOME
    write_log(path, outcome=None)
    assert Recording.read(path).outcome is None


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"event":"start"}', '{"event":"start","options":{},"faults":[{}]}'])
def test_what_is_no_log_is_refused(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(ValueError, match="no "):
        Recording.read(path)
    result = CliRunner().invoke(main, ["stress", "--replay", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2


def test_outcomes_are_compared():
    assert differences(OUTCOME, OUTCOME) == []
    worse = differences(OUTCOME, {"passed": False, "broken": ["hang"]})
    assert worse == ["the recorded run passed, this one failed", "only this run broke 'hang'"]
    other = differences({"passed": False, "broken": ["sum"]}, {"passed": False, "broken": ["hang"]})
    assert other == ["only the recorded run broke 'sum'", "only this run broke 'hang'"]
    assert "cut off" in differences(None, OUTCOME)[0]
    assert "cut off" in differences({**OUTCOME, "cut_short": "ended by SIGINT"}, OUTCOME)[0]
