"""Tries the wheels in `dist` on the systems that they are for: `make try-wheels`, or python tools/try_wheels.py [SYSTEM...]

Unpacks each system into `build/wheels/systems`, without installing it, and has its Python import the wheel and reduce with keys
(tools/wheel_program.py). Systems for another processor run under qemu. Takes root, and Debian's debootstrap and
qemu-user-static.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from wheels import DIST, ROOT, TARGETS, WORK, WheelsError, mirrors, numbers, say

#: Names of the machine, in the tags of wheels and for Debian.
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class System:
    """A system that a wheel is tried on."""

    target: str  # of the wheel
    suite: str  # of Debian
    libc: str  # glibc's version
    python: str

    @property
    def machine(self) -> str:
        """The processor, as Linux calls it."""
        return TARGETS[self.target].machine


SYSTEMS = {
    "debian-12-amd64": System("manylinux_2_28_x86_64", "bookworm", "2.36", "3.11"),
    "debian-13-amd64": System("manylinux_2_28_x86_64", "trixie", "2.41", "3.13"),
    "debian-12-arm64": System("manylinux_2_28_aarch64", "bookworm", "2.36", "3.11"),
    "debian-13-arm64": System("manylinux_2_28_aarch64", "trixie", "2.41", "3.13"),
}

#: A configuration that leaves OpenSSL without ciphers. A wheel does not read it.
HOSTILE = """\
openssl_conf = all
[all]
providers = some
[some]
base = least
[least]
activate = 1
"""


def platforms(machine: str, glibc: str) -> list[str]:
    """Returns the tags of the platforms whose wheels a system takes, from the newest to manylinux_2_17."""
    newest = numbers(glibc)[1]
    return [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 16, -1)] + [f"manylinux2014_{machine}"]


def call(command: list[str | Path], **options: str) -> str:
    """Returns the output of a command. If it fails, raises WheelsError with the end of its output."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | options, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise WheelsError(f"{' '.join(map(str, command[:6]))} ... failed with status {done.returncode}:\n{tail}")
    return done.stdout


def unpacked(name: str, system: System) -> Path:
    """Returns the folder of a system: Debian's smallest one with Python, unpacked but not installed."""
    root = WORK / "systems" / name
    if root.is_dir():
        return root
    packages, part = root.with_suffix(".packages"), root.with_suffix(".part")
    for old in (packages, part):
        shutil.rmtree(old, ignore_errors=True)
    packages.parent.mkdir(parents=True, exist_ok=True)
    found = [mirror for mirror in mirrors() if mirror.rstrip("/").endswith("/debian")]
    options = ["--variant=minbase", "--include=python3", "--download-only", f"--arch={DEBIAN[system.machine]}"]
    say(None, f"{name}: downloading {system.suite}")
    call(["debootstrap", *options, system.suite, packages, *found[:1]])
    part.mkdir()
    archives = sorted((packages / "var/cache/apt/archives").glob("*.deb"))
    archives.sort(key=lambda path: not path.name.startswith("base-files_"))  # which may have links in the place of folders
    for archive in archives:
        call(["dpkg-deb", "-x", archive, part])
    shutil.rmtree(packages)
    part.rename(root)
    return root


def wheel_of(system: System) -> Path:
    """Returns the wheel in `dist` for a system."""
    found = sorted(DIST.glob(f"pccl-*-{system.target}.whl"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise WheelsError(f"no wheel for {system.target} in {DIST}: make wheels WHEELS={system.target}")
    return found[-1]


def try_system(name: str, system: System) -> None:
    """Installs the wheel into a system and runs the program there, also with a hostile openssl.cnf."""
    root = unpacked(name, system)
    place = root / "opt" / "wheel"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    tags = [f"--platform={tag}" for tag in platforms(system.machine, system.libc)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--implementation=cp"]
    call([*pip, f"--python-version={system.python}", *tags, f"--target={place}", wheel_of(system), "numpy"])
    shutil.copy(Path(__file__).with_name("wheel_program.py"), place)
    (place / "hostile.cnf").write_text(HOSTILE)
    program = ["/usr/bin/python3", "/opt/wheel/wheel_program.py"]
    if system.machine != platform.machine():
        emulator = shutil.which(f"qemu-{system.machine}-static")
        if emulator is None:
            raise WheelsError(f"{name} takes qemu-{system.machine}-static: apt-get install qemu-user-static")
        shutil.copy(emulator, root / "opt")
        program.insert(0, f"/opt/{Path(emulator).name}")
    # a place of its own for what is mounted, which ends with the process
    mounts = f'mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && exec chroot {root} "$@"'
    inside: list[str | Path] = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", mounts, "sh", *program]
    say(None, f"{name}: {call(inside).splitlines()[-1]}")
    say(None, f"{name}: {call(inside, OPENSSL_CONF='/opt/wheel/hostile.cnf').splitlines()[-1]}")


def main() -> int:
    """Tries the systems that the command line names; returns 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"default: all of {', '.join(SYSTEMS)}")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.systems if name not in SYSTEMS]
    if unknown:
        parser.error(f"unknown system {unknown[0]}: choose from {', '.join(SYSTEMS)}")
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        parser.error("takes root and debootstrap: apt-get install debootstrap qemu-user-static")
    failed = False
    for name in arguments.systems or SYSTEMS:
        try:
            try_system(name, SYSTEMS[name])
        except WheelsError as error:
            print(f"wheels: {name}: {error}", file=sys.stderr, flush=True)
            failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
