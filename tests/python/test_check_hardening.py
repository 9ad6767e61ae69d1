"""tools/check_hardening.py on small programs: each protection that is left out is found."""

import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "check_hardening.py"
X86 = platform.machine() == "x86_64"
BRANCHES = "-fcf-protection" if X86 else "-mbranch-protection=standard"
GOOD = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", BRANCHES, "-Wl,-z,relro,-z,now,-z,noexecstack"]
WITHOUT = {
    "it binds its symbols late": ["-Wl,-z,lazy"],
    "the table of its symbols can be written": ["-Wl,-z,norelro"],
    "its stack is executable": ["-Wl,-z,execstack"],
    "it has no stack protector": ["-fno-stack-protector"],
    "calls of the C library are not checked": ["-U_FORTIFY_SOURCE"],
    "its branches are not protected": ["-fcf-protection=none" if X86 else "-mbranch-protection=none"],
}
SOURCE = """#include <stdio.h>
int f(const char *s, char *out) { char b[64]; snprintf(b, sizeof b, "%s", s); return sprintf(out, "%s!", b); }
"""

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="takes a C compiler")


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("check_hardening", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def library(folder: Path, flags: list[str]) -> bytes:
    source, path = folder / "a.c", folder / "a.so"
    source.write_text(SOURCE + "".join(f"int g{i}(int (*h)(int)) {{ return h({i}); }}\n" for i in range(20)))
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", *flags, "-o", path, source], check=True)
    return path.read_bytes()


def test_a_hardened_library_has_no_breaches(tool: Any, tmp_path: Path) -> None:
    assert tool.breaches(tool.read(library(tmp_path, GOOD))) == []


@pytest.mark.parametrize("words", WITHOUT)
def test_each_missing_protection_is_found(tool: Any, tmp_path: Path, words: str) -> None:
    (line,) = tool.breaches(tool.read(library(tmp_path, [*GOOD, *WITHOUT[words]])))
    assert words in line


def test_a_program_at_a_fixed_address(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-no-pie", "-fno-pie", "-o", tmp_path / "a", tmp_path / "a.c"], check=True)
    assert any("known address" in line for line in tool.breaches(tool.read((tmp_path / "a").read_bytes())))


def test_no_library(tool: Any) -> None:
    with pytest.raises(ValueError, match="no ELF file"):
        tool.read(b"#!/bin/sh\n")


def test_the_build_is_hardened(tool: Any) -> None:
    """What this test loads, and what wheels carry."""
    for path in [*(ROOT / "pccl").glob("*.so"), *(ROOT / "pccl").glob("spawned_master")]:
        assert tool.breaches(tool.read(path.read_bytes())) == [], path
