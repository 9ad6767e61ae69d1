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


@pytest.mark.parametrize(
    "line", ["int fd = open(path, O_RDONLY);", "syscall(SYS_pidfd_open, pid)", "fcntl(fd, F_DUPFD, 0)", "close(fd);"]
)
def test_descriptors_are_opened_and_closed_in_one_place(tool: ModuleType, capsys: pytest.CaptureFixture[str], line: str) -> None:
    text = "opens or closes a descriptor without csrc/base/descriptor.h"
    assert lines(tool, capsys, {"csrc/net/a.c": line, "csrc/base/descriptor.c": line}) == [f"csrc/net/a.c:1 {text}"]


@pytest.mark.parametrize(
    "line", ["stream_close(s);", 'log("open(%s)", path);', "x->close(y); // close(fd)", "descriptor_end(open(path));"]
)
def test_what_opens_no_descriptor(tool: ModuleType, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert lines(tool, capsys, {"csrc/net/a.c": line}) == []


def test_public_functions_ask_whose_handle_they_get(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    source = """\
pcclResult_t pcclAsks(pcclComm_t *comm) {
    REQUIRE_COMM(comm);
}
pcclResult_t pcclPassesOn(pcclComm_t *comm, int n) { return pcclAsks(comm); }
pcclResult_t pcclForgets(pcclComm_t *comm) { return use(comm); }
"""
    assert lines(tool, capsys, {"csrc/api/a.c": source}) == ["pcclForgets must begin with REQUIRE_COMM or REQUIRE_MASTER"]
