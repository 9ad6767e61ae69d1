"""tools/wheels.py: what may be in a wheel, where sources come from, and what the script refuses."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def wheels() -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        import wheels
    finally:
        sys.path.remove(str(TOOLS))
    return wheels


def binary(wheels: Any, **changes: Any) -> Any:
    good = wheels.Binary(
        machine="x86_64",
        needed=["libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"],
        versions={"GLIBC_2.2.5", "GLIBC_2.28"},
        strong={"malloc", "PyLong_FromLong"},
        exports={"PyInit__native"},
    )
    return replace(good, **changes)


def breaches(wheels: Any, tag: str = "manylinux_2_28_x86_64", **changes: Any) -> list[str]:
    return list(wheels.breaches("pccl/_native.abi3.so", binary(wheels, **changes), wheels.TARGETS[tag]))


def test_the_oldest_glibc_of_symbols(wheels: Any) -> None:
    assert wheels.glibc_floor(["GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.4"]) == (2, 17)
    assert wheels.glibc_floor(["GLIBC_PRIVATE"]) == ()
    assert wheels.glibc_floor([]) == ()


def test_a_good_binary_has_no_breaches(wheels: Any) -> None:
    assert breaches(wheels) == []
    assert breaches(wheels, "musllinux_1_2_x86_64", needed=["libc.so"], versions=set()) == []


@pytest.mark.parametrize(
    ("tag", "changes", "words"),
    [
        ("manylinux_2_28_x86_64", {"versions": {"GLIBC_2.34"}}, "it needs glibc 2.34, newer than 2.28"),
        ("manylinux_2_28_x86_64", {"needed": ["libssl.so.3"]}, "it needs libssl.so.3"),
        ("manylinux_2_28_x86_64", {"exports": {"PyInit__native", "SSL_new"}}, "it exports SSL_new"),
        ("manylinux_2_28_x86_64", {"exports": set()}, "it does not export PyInit__native"),
        ("manylinux_2_28_x86_64", {"machine": "aarch64"}, "it is for aarch64, not for x86_64"),
        ("manylinux_2_28_x86_64", {"fixed": True}, "its code is at a fixed address"),
        ("musllinux_1_2_x86_64", {"needed": ["libc.so"]}, "it needs versions of symbols"),
        ("musllinux_1_2_x86_64", {"needed": ["libc.so.6"], "versions": set()}, "it needs libc.so.6"),
        ("musllinux_1_2_x86_64", {"needed": [], "versions": set(), "strong": {"qsort_r"}}, "musl 1.2.0 lacks qsort_r"),
    ],
)
def test_each_breach_is_found(wheels: Any, tag: str, changes: dict[str, Any], words: str) -> None:
    (line,) = breaches(wheels, tag, **changes)
    assert line.startswith("pccl/_native.abi3.so: ")
    assert words in line


def test_a_module_exports_its_init_function(wheels: Any) -> None:
    target = wheels.TARGETS["manylinux_2_28_x86_64"]
    assert wheels.breaches("pccl/_new.abi3.so", binary(wheels, exports={"PyInit__new"}), target) == []
    assert len(wheels.breaches("pccl/_new.abi3.so", binary(wheels), target)) == 1


def test_modules_for_a_free_threaded_python(wheels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "FREE_THREADED", "314t")
    for tag, suffix in [
        ("manylinux_2_28_x86_64", ".cpython-314t-x86_64-linux-gnu.so"),
        ("manylinux_2_28_aarch64", ".cpython-314t-aarch64-linux-gnu.so"),
        ("musllinux_1_2_x86_64", ".cpython-314t-x86_64-linux-musl.so"),
    ]:
        target = wheels.TARGETS[tag]
        assert target.suffix == suffix
        name = f"pccl/_native{suffix}"
        assert not any("no such file" in line for line in wheels.breaches(name, binary(wheels), target))


def test_a_file_that_nobody_expects(wheels: Any) -> None:
    (line,) = wheels.breaches("pccl/more.so", binary(wheels), wheels.TARGETS["manylinux_2_28_x86_64"])
    assert "list it in EXPORTS" in line


def test_what_auditwheel_says(wheels: Any) -> None:
    said = 'pccl-0.2.0-cp311-abi3-linux_x86_64.whl is consistent with the\nfollowing platform tag: "manylinux_2_27_x86_64".\n'
    assert wheels.judged_tag(said) == "manylinux_2_27_x86_64"
    assert wheels.judged_tag("an error") is None
    target = wheels.TARGETS["manylinux_2_28_x86_64"]
    assert wheels.serves("manylinux_2_28_x86_64", target)
    assert wheels.serves("manylinux_2_5_x86_64", target)
    for other in ("manylinux_2_34_x86_64", "manylinux_2_17_aarch64", "musllinux_1_2_x86_64", "linux_x86_64"):
        assert not wheels.serves(other, target)


def test_targets_and_their_oldest_libc(wheels: Any) -> None:
    for tag, target in wheels.TARGETS.items():
        libc, major, minor, machine = tag.split("_", 3)
        assert target.machine == machine
        assert target.glibc == ((int(major), int(minor)) if libc == "manylinux" else None)
        assert target.openssl == f"linux-{machine}"


def test_where_sources_come_from(wheels: Any) -> None:
    found = wheels.addresses(wheels.LZ4, ["http://mirror.example/debian/"])
    assert found == [wheels.LZ4.upstream, f"http://mirror.example/debian/{wheels.LZ4.debian}"]
    for source in (wheels.LZ4, wheels.OPENSSL):
        assert source.version in source.upstream
        assert source.version in source.debian


def test_a_source_with_another_content_is_refused(wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "WORK", tmp_path)
    path = tmp_path / "sources" / wheels.LZ4.archive
    path.parent.mkdir()
    path.write_bytes(b"something else")
    with pytest.raises(wheels.WheelsError, match=r"is not lz4 .*delete it"):
        wheels.fetched(wheels.LZ4)
    right = replace(wheels.LZ4, sha256=hashlib.sha256(b"something else").hexdigest())
    assert wheels.fetched(right) == path


def test_a_source_that_cannot_be_had(wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"an error page")
    monkeypatch.setattr(wheels, "WORK", tmp_path)
    monkeypatch.setattr(wheels, "mirrors", list)
    with pytest.raises(wheels.WheelsError) as error:
        wheels.fetched(replace(wheels.LZ4, upstream=other.as_uri()))
    words = str(error.value)
    assert f"put it at {tmp_path / 'sources' / wheels.LZ4.archive}" in words
    assert f"another file, its SHA-256 is {hashlib.sha256(b'an error page').hexdigest()}" in words
    assert not (tmp_path / "sources" / wheels.LZ4.archive).exists()


def test_an_unknown_target() -> None:
    done = subprocess.run(
        [sys.executable, TOOLS / "wheels.py", "manylinux_1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "unknown target manylinux_1: choose from manylinux_2_28_x86_64" in done.stderr


def test_platforms_whose_wheels_a_system_takes(wheels: Any) -> None:
    sys.path.insert(0, str(TOOLS))
    try:
        from try_wheels import platforms
    finally:
        sys.path.remove(str(TOOLS))
    assert platforms(wheels.TARGETS["manylinux_2_28_aarch64"], "2.19") == [
        "manylinux_2_19_aarch64",
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
    ]
    assert platforms(wheels.TARGETS["musllinux_1_2_x86_64"], "1.2.2") == ["musllinux_1_2_x86_64", "musllinux_1_1_x86_64"]
