"""tools/check_layout.py on small trees."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check_layout.py"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    spec = importlib.util.spec_from_file_location("check_layout", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "INCLUDES", tuple(tmp_path / folder.relative_to(TOOL.parents[1]) for folder in module.INCLUDES))
    monkeypatch.setattr(module, "KNOWN", set())
    return module


def lines(tool: ModuleType, capsys: pytest.CaptureFixture[str], sources: dict[str, str]) -> list[str]:
    for name, text in sources.items():
        path = tool.ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    status = tool.main()
    found = capsys.readouterr().out.splitlines()
    assert status == (1 if found else 0)
    return found


def test_the_simulator_includes_the_core(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {
        "csrc/include/pccl.h": "",
        "csrc/net/wire.h": '#include "pccl.h"\n',
        "csrc/peer/member.c": '#include "peer/member.h"\n#include "net/wire.h"\n',
        "csrc/peer/member.h": "",
        "sim/world.c": '#include "sim/world.h"\n#include "peer/member.h"\n#include "pccl.h"\n',
        "sim/world.h": "",
    }
    assert lines(tool, capsys, sources) == []


def test_the_core_includes_no_simulator(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {"csrc/api/pccl.c": '#include "sim/sim.h"\n', "sim/sim.h": ""}
    assert lines(tool, capsys, sources) == ["csrc/api/pccl.c includes sim/sim.h, which stands above it"]


def test_an_include_that_goes_up(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {"csrc/net/wire.c": '#include "peer/member.h"\n', "csrc/peer/member.h": ""}
    assert lines(tool, capsys, sources) == ["csrc/net/wire.c includes peer/member.h, which stands above it"]


def test_a_header_of_another_folder(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {"csrc/net/wire.c": '#include "tests/unit.h"\n#include "gone.h"\n', "tests/unit.h": ""}
    assert lines(tool, capsys, sources) == [
        f"csrc/net/wire.c includes {name}, which is not in csrc, cuda or sim" for name in ("gone.h", "tests/unit.h")
    ]


def test_a_circle_in_the_simulator(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {"sim/peers.h": '#include "sim/world.h"\n', "sim/world.h": '#include "sim/peers.h"\n'}
    assert lines(tool, capsys, sources) == ["modules include each other: sim/peers, sim/world"]


def test_long_files_and_wide_lines(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {"csrc/base/log.c": "\n" * 601, "sim/run.c": f"// {'x' * 120}\n"}
    assert lines(tool, capsys, sources) == [
        "csrc/base/log.c is longer than 600 lines",
        "sim/run.c:1 is wider than 120 columns",
    ]
