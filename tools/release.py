"""Makes what a release consists of: `make release`, or python tools/release.py [--check]

It refuses a tree with changes, and a version that CHANGELOG.md has no date for. In `dist` are then the source archive, the
wheels (tools/wheels.py), SHA256SUMS, and a bill of materials in the format of CycloneDX, which names the libraries in the wheels
and the packages that pip adds.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import runpy
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import wheels

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LICENCES = {"openssl": "Apache-2.0", "lz4": "BSD-2-Clause"}


class ReleaseError(Exception):
    """Why there can be no release, for the person who wants one."""


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only tell whether a release can be made")
    given = parser.parse_args()
    try:
        version = runpy.run_path(str(ROOT / "pccl" / "_version.py"))["__version__"]
        require_date(version, (ROOT / "CHANGELOG.md").read_text())
        require_clean()
        if not given.check:
            make(version)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def require_date(version: str, changelog: str) -> datetime.date:
    """The date of a version, whose heading must be the first: `## 1.2.3 (2026-01-31)`."""
    first = re.search(r"^## (.*)$", changelog, re.M)
    heading = first[1] if first else ""
    match = re.fullmatch(r"(\S+) \((.*)\)", heading)
    try:
        if match and match[1] == version:
            return datetime.date.fromisoformat(match[2])
    except ValueError:
        pass
    raise ReleaseError(f'the first heading of CHANGELOG.md is "## {heading}"; make it "## {version} (YYYY-MM-DD)"')


def require_clean() -> None:
    """What is released must be what a commit has."""
    changes = run("git", "status", "--porcelain")
    if changes:
        raise ReleaseError(f"the tree has changes that are in no commit:\n{changes}")


def make(version: str) -> None:
    """Fills `dist`."""
    kept = [path.name for path in DIST.glob("*")] if DIST.exists() else []
    if kept:
        raise ReleaseError(f"{DIST} has files already ({', '.join(sorted(kept)[:3])}); move or remove them")
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", str(DIST), str(ROOT)], check=True)
    subprocess.run([sys.executable, str(ROOT / "tools" / "wheels.py")], check=True)
    commit = run("git", "rev-parse", "HEAD")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bill = bill_of_materials(version, commit, [wheels.OPENSSL, wheels.LZ4], project["dependencies"])
    (DIST / f"pccl-{version}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    (DIST / "SHA256SUMS").write_text(sums(files))
    print(f"{DIST}: {', '.join(path.name for path in files)}")
    print(f"next: git tag -s v{version} {commit}, and publish these files with it")


def sums(files: Iterable[Path]) -> str:
    """As `sha256sum` writes them, and reads them with -c."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def bill_of_materials(version: str, commit: str, sources: Iterable[wheels.Source], dependencies: Iterable[str]) -> dict[str, Any]:
    """What is in a release, as CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json). The serial number is that of the commit."""
    product = f"pkg:pypi/pccl@{version}"
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:generic/{source.name}@{source.version}",
            "name": source.name,
            "version": source.version,
            "purl": f"pkg:generic/{source.name}@{source.version}",
            "hashes": [{"alg": "SHA-256", "content": source.sha256}],
            "licenses": [{"license": {"id": LICENCES[source.name]}}],
            "externalReferences": [{"type": "distribution", "url": source.upstream}],
            "scope": "required",
        }
        for source in sources
    ]
    for dependency in dependencies:
        match = re.match(r"[\w.-]+", dependency)
        assert match is not None
        components.append({
            "type": "library",
            "bom-ref": f"pkg:pypi/{match[0].lower()}",
            "name": match[0],
            "purl": f"pkg:pypi/{match[0].lower()}",
            "description": f"installed by pip: {dependency}",
            "scope": "required",
        })  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, commit)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": product,
                "name": "pccl",
                "version": version,
                "purl": product,
                "licenses": [{"license": {"id": "MIT"}}],
                "properties": [{"name": "commit", "value": commit}],
            }
        },
        "components": components,
        "dependencies": [{"ref": product, "dependsOn": [str(one["bom-ref"]) for one in components]}],
    }


def run(*command: str) -> str:
    """What a command writes."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
