"""tools/release.py: what it refuses, and what it writes beside the wheels."""

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def release() -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        import release
    finally:
        sys.path.remove(str(TOOLS))
    return release


def test_a_version_with_a_date(release: Any) -> None:
    found = release.require_date("1.2.3", "# Changelog\n\n## 1.2.3 (2026-01-31)\n\n## 1.2.2 (2025-01-31)\n")
    assert found == datetime.date(2026, 1, 31)


@pytest.mark.parametrize(
    "heading",
    ["## 1.2.3 (unreleased)", "## 1.2.3", "## 1.2.4 (2026-01-31)", "## 1.2.3 (2026-02-31)", "## 1.2.3 (2026-01-31) x", ""],
)
def test_a_version_without_a_date(release: Any, heading: str) -> None:
    with pytest.raises(release.ReleaseError, match=r'make it "## 1\.2\.3 \(YYYY-MM-DD\)"'):
        release.require_date("1.2.3", f"# Changelog\n\n{heading}\n\n## 1.2.3 (2026-01-31)\n" if heading else "# Changelog\n")


def test_sums_are_read_by_sha256sum(release: Any, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.whl", "b.tar.gz")]
    for path in files:
        path.write_bytes(path.name.encode())
    (tmp_path / "SHA256SUMS").write_text(release.sums(files))
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)


def test_the_bill_of_materials_names_what_is_in_the_wheels(release: Any) -> None:
    sources = [release.wheels.OPENSSL, release.wheels.LZ4]
    bill = release.bill_of_materials("1.2.3", "abc", sources, ["cffi>=1.15", "Click>=8"])
    found = {one["purl"]: one for one in bill["components"]}
    openssl = found[f"pkg:generic/openssl@{release.wheels.OPENSSL.version}"]
    assert openssl["hashes"] == [{"alg": "SHA-256", "content": release.wheels.OPENSSL.sha256}]
    assert "pkg:pypi/click" in found
    refs = {one["bom-ref"] for one in bill["components"]}
    assert set(bill["dependencies"][0]["dependsOn"]) == refs
    assert len(refs) == len(bill["components"]) == 4
    assert bill["metadata"]["component"]["version"] == "1.2.3"
    assert bill["serialNumber"] == release.bill_of_materials("1.2.3", "abc", [], [])["serialNumber"]


def test_each_library_in_the_wheels_has_a_licence(release: Any) -> None:
    sources = [value for value in vars(release.wheels).values() if isinstance(value, release.wheels.Source)]
    assert {one.name for one in sources} == set(release.LICENCES)
