"""tools/check_symbols.py on small builds: each kind of breach is found, and the exceptions are used up."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check_symbols.py"

pytestmark = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("nm")), reason="takes a C compiler and nm")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("check_symbols", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CIRCLES", {})
    monkeypatch.setattr(module, "PREFIXES", {})
    return module


def built(tool: Any, root: Path, sources: dict[str, str]) -> list[str]:
    tool.ROOT = root
    for name, text in sources.items():
        place = name if name.startswith("sim/") else f"csrc/{name}"
        source = root / f"{place}.c"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
        library = "pccl_sim" if name.startswith("sim/") else "pccl_core"
        compiled = root / f"build/CMakeFiles/{library}.dir/{place}.c.o"
        compiled.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-c", "-o", compiled, source], check=True)
    return list(tool.breaches(tool.Objects(root / "build")))


def test_a_tree_without_breaches(tool: Any, tmp_path: Path) -> None:
    sources = {
        "net/wire_data": "void wire_take(void) {}",
        "peer/links": "void wire_take(void); void links_new(void) { wire_take(); } void link_end(void) {}",
        "api/calls": "void links_new(void); void pcclCall(void) { links_new(); } static void begin(void) {}"
        " void api_go(void) { begin(); }",
    }
    assert built(tool, tmp_path, sources) == []


def test_a_circle_of_three(tool: Any, tmp_path: Path) -> None:
    sources = {
        "data/lane": "extern const int route; int lane_go(void) { return route; }",
        "data/route": "int algorithm_go(void); const int route = 1; int route_go(void) { return algorithm_go(); }",
        "data/algorithm": "int lane_go(void); int algorithm_go(void) { return lane_go(); }",
        "net/conn": "int conn_go(void) { return 0; }",
    }
    assert built(tool, tmp_path, sources) == ["objects need each other: data/algorithm data/lane data/route"]
    tool.CIRCLES = {"data/algorithm data/lane data/route": "known"}
    assert tool.breaches(tool.Objects(tmp_path / "build")) == []


def test_a_symbol_defined_twice(tool: Any, tmp_path: Path) -> None:
    sources = {"data/algorithm": "int algorithm_bytes(void) { return 1; }", "sim/algorithm": "const int algorithm_bytes = 1;"}
    assert built(tool, tmp_path, sources) == ["algorithm_bytes is defined in data/algorithm and sim/algorithm"]


def test_a_prefix_of_another_module(tool: Any, tmp_path: Path) -> None:
    sources = {"data/link": "void lane_go(void) {} void linked(void) {} void link_go(void) {}"}
    assert built(tool, tmp_path, sources) == [
        "data/link.c: lane_go has not the prefix of its module, link_",
        "data/link.c: linked has not the prefix of its module, link_",
    ]
    tool.PREFIXES = {"data/link": {"lane_": "known", "gone_": "not needed"}, "data/gone": {"x_": "no such module"}}
    assert tool.breaches(tool.Objects(tmp_path / "build")) == [
        "data/link.c: linked has not the prefix of its module, link_",
        "mended, take it out of PREFIXES: data/link gone_",
        "gone, take it out of PREFIXES: data/gone",
    ]


def test_an_object_whose_source_is_gone(tool: Any, tmp_path: Path) -> None:
    built(tool, tmp_path, {"data/old": "void wrong(void) {}"})
    (tmp_path / "csrc/data/old.c").unlink()
    assert tool.breaches(tool.Objects(tmp_path / "build")) == []


@pytest.mark.parametrize("require", [False, True])
def test_no_build(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], require: bool
) -> None:
    tool.ROOT = tmp_path
    monkeypatch.setattr("sys.argv", ["check_symbols.py", *["--require"][: int(require)]])
    assert tool.main() == int(require)
    assert "not checked" in capsys.readouterr().out


def test_which_build_is_up_to_date(tool: Any, tmp_path: Path) -> None:
    built(tool, tmp_path, {"data/a": "", "data/b": ""})
    (tmp_path / "csrc/data/other_processor.c").write_text("")
    build = tmp_path / "build/test"
    (tmp_path / "build/CMakeFiles").rename(tmp_path / "CMakeFiles")
    build.mkdir()
    (tmp_path / "CMakeFiles").rename(build / "CMakeFiles")
    for library in tool.LIBRARIES:
        (build / f"lib{library}.a").write_text("")
    (build / "CMakeCache.txt").write_text("PCCL_SANITIZE:STRING=\nPCCL_BUILD_FUZZ:BOOL=OFF\n")
    assert tool.newest_build() == build
    source = tmp_path / "csrc/data/a.c"
    os.utime(source, (source.stat().st_atime, source.stat().st_mtime + 100))
    assert tool.newest_build() is None
