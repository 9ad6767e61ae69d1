"""tools/check_imports.py on small packages: imports that go up or aside, lazy names, and circles are found."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    spec = importlib.util.spec_from_file_location("check_imports", TOOLS / "check_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop("check_symbols", None)
    return module


def found(tool: ModuleType, root: Path, sources: dict[str, str]) -> set[str]:
    (root / "pccl").mkdir(exist_ok=True)
    (root / "pccl" / "__init__.pyi").write_text(
        "from pccl._peer.communicator import Communicator as Communicator\n"
        "from pccl._peer.shared_state import SharedState as SharedState\n"
    )
    modules = {"__init__": "", "_peer/__init__": "", "_peer/communicator": "", "_peer/shared_state": ""}
    for name, text in {**modules, **sources}.items():
        path = root / "pccl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines: set[str] = tool.breaches(tool.graph(root))
    return lines


@pytest.mark.parametrize(
    "text",
    [
        "from pccl._peer.shared_state import SharedState",
        "from pccl import Communicator",
        "from . import _outer",
    ],
)
def test_imports_that_go_down(tool: ModuleType, tmp_path: Path, text: str) -> None:
    assert found(tool, tmp_path, {"diloco/__init__": "", "diloco/_outer": "", "diloco/_base": text, "cli/__init__": ""}) == set()


@pytest.mark.parametrize(
    "text",
    [
        "from pccl.cli import main",
        "def f():\n    from ..cli import main",
        "import pccl.cli",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pccl.cli import main",
    ],
)
def test_an_import_that_goes_up(tool: ModuleType, tmp_path: Path, text: str) -> None:
    sources = {"cli/__init__": "", "diloco/_base": text}
    assert found(tool, tmp_path, sources) == {"pccl.diloco._base imports pccl.cli, which stands above it"}


def test_a_lazy_name_that_goes_up(tool: ModuleType, tmp_path: Path) -> None:
    sources = {"_host/files": "from pccl import SharedState"}
    assert found(tool, tmp_path, sources) == {"pccl._host.files imports pccl._peer.shared_state, which stands above it"}


def test_an_import_aside(tool: ModuleType, tmp_path: Path) -> None:
    sources = {"diloco/_base": "import pccl.distributed", "distributed/__init__": ""}
    assert found(tool, tmp_path, sources) == {"pccl.diloco._base imports pccl.distributed, which stands beside it"}


@pytest.mark.parametrize("condition", ["True", "TYPE_CHECKING"])
def test_a_circle(tool: ModuleType, tmp_path: Path, condition: str) -> None:
    names = ("diloco._a", "diloco._b", "diloco._c")
    sources = {
        "diloco/__init__": "",
        "diloco/_a": "import pccl.diloco._b",
        "diloco/_b": "def f():\n    import pccl.diloco._c",
        "diloco/_c": f"if {condition}:\n    from pccl.diloco import _a",
    }
    assert found(tool, tmp_path, sources) == {f"modules import each other: {' '.join('pccl.' + name for name in names)}"}


def test_an_import_of_the_package_itself(tool: ModuleType, tmp_path: Path) -> None:
    """It is the place where users find names, and imports all that has any."""
    assert found(tool, tmp_path, {"diloco/_base": "import pccl", "diloco/__init__": ""}) == {
        "pccl.diloco._base imports pccl, which stands above it"
    }


def test_a_module_without_a_layer(tool: ModuleType, tmp_path: Path) -> None:
    assert found(tool, tmp_path, {"_new": ""}) == {"pccl._new has no layer"}


def test_modules_of_one_folder_may_have_different_layers(tool: ModuleType, tmp_path: Path) -> None:
    sources = {
        "state/__init__": "from pccl.state._local.tree import encode",
        "state/_local/tree": "",
        "_peer/shared_state": "from pccl.state._local.tree import encode",
    }
    assert found(tool, tmp_path, sources) == set()
    assert found(tool, tmp_path, {"_peer/shared_state": "import pccl.state"}) == {
        "pccl._peer.shared_state imports pccl.state, which stands above it"
    }
