"""Tries the wheels in `dist` on the systems that they are for: `make try-wheels`, or python tools/try_wheels.py [SYSTEM...]

Unpacks each system into `build/wheels/systems`, without installing it, and has its Python import the wheel and reduce with keys
(tools/wheel_program.py). A system whose Python is too old, or that has none for musl, gets one that Zig compiles. Systems for
another processor run under qemu. Takes root, and Debian's debootstrap and qemu-user-static.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from wheels import DIST, ROOT, TARGETS, WORK, Source, Target, WheelsError, compiler_version, mirrors, numbers, run, say, stamp
from wheels import unpacked as unpacked_source

#: Names of the machine, in the tags of wheels and for Debian.
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class System:
    """A system that a wheel is tried on."""

    target: str  # of the wheel
    suite: str  # of Debian
    libc: str  # glibc's version; with the package musl of Debian, musl's
    python: str
    compiled: bool = False  # whether Python is not Debian's

    @property
    def machine(self) -> str:
        """The processor, as Linux calls it."""
        return TARGETS[self.target].machine


SYSTEMS = {
    "debian-11-amd64": System("manylinux_2_28_x86_64", "bullseye", "2.31", "3.11", compiled=True),
    "debian-12-amd64": System("manylinux_2_28_x86_64", "bookworm", "2.36", "3.11"),
    "debian-13-amd64": System("manylinux_2_28_x86_64", "trixie", "2.41", "3.13"),
    "debian-12-arm64": System("manylinux_2_28_aarch64", "bookworm", "2.36", "3.11"),
    "debian-13-arm64": System("manylinux_2_28_aarch64", "trixie", "2.41", "3.13"),
    "debian-13-musl-amd64": System("musllinux_1_2_x86_64", "trixie", "1.2.5", "3.11", compiled=True),
}

PYTHON = Source(
    "python",
    "3.11.2",
    "2411c74bda5bbcfcddaf4531f66d1adc73f247f529aee981b029513aefdbf849",
    "https://www.python.org/ftp/python/3.11.2/Python-3.11.2.tgz",
    "pool/main/p/python3.11/python3.11_3.11.2.orig.tar.gz",
    "LICENSE",
)
PYTHON_PLACE = "opt/python"  # in a system

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


def platforms(target: Target, libc: str) -> list[str]:
    """Returns the tags of the platforms whose wheels a system takes, from the newest to the oldest in use."""
    newest = numbers(libc)[1]
    if target.glibc is None:
        return [f"musllinux_1_{minor}_{target.machine}" for minor in range(newest, 0, -1)]
    return [f"manylinux_2_{minor}_{target.machine}" for minor in range(newest, 16, -1)] + [f"manylinux2014_{target.machine}"]


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
    wanted = "musl" if TARGETS[system.target].glibc is None else "python3"
    options = ["--variant=minbase", f"--include={wanted}", "--download-only", f"--arch={DEBIAN[system.machine]}"]
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


def compiled_python(target: Target, jobs: int) -> Path:
    """Returns the folder of a Python compiled for the target: what is enough to import a wheel, without OpenSSL."""
    folder = WORK / target.tag
    out, build, log = folder / "python", folder / "python-build", folder / "python.log"
    made, mark = stamp(PYTHON, target, compiler_version()), out / "stamp"
    if mark.is_file() and mark.read_text() == made:
        return out
    if not PYTHON.version.startswith(f"{sys.version_info.major}.{sys.version_info.minor}."):
        raise WheelsError(
            f"the build of Python {PYTHON.version} takes a Python of the same minor version; make PYTHON=python3.11"
        )
    for old in (out, build):
        shutil.rmtree(old, ignore_errors=True)
    build.mkdir(parents=True)
    log.unlink(missing_ok=True)
    source = unpacked_source(PYTHON)
    tools = {name.upper(): str(folder / "bin" / name) for name in ("ar", "ranlib")}
    # Python would ask for folders of headers and name them again, in an order that breaks them, or those of this machine.
    compiler = build / "cc"
    tools["CC"] = str(compiler)
    answers = '[ "$*" = "-E -v -" ] && exit 1\n[ "$*" = "-print-multiarch" ] && echo none && exit 0\n'
    compiler.write_text(f'#!/bin/sh\n{answers}exec {shlex.quote(str(folder / "bin" / "cc"))} "$@"\n')
    compiler.chmod(0o755)
    tools |= {"READELF": shutil.which("readelf") or "readelf", "CFLAGS": "-O1 -Wno-date-time"}
    tools["LDFLAGS"] = "-Wl,-z,stack-size=131072"  # Zig would give threads more; with musl they have as much as on Alpine
    # Names that differ, or the build would take the headers of this machine; with the same libc, which names the modules.
    libc = "musl" if target.glibc is None else "gnu"
    options = [f"--host={target.machine}-unknown-linux-{libc}", f"--build=x86_64-pc-linux-{libc}"]
    options += [f"--with-build-python={sys.executable}"]
    options += [f"--prefix=/{PYTHON_PLACE}", "--without-ensurepip", "--disable-test-modules", "--with-pkg-config=no"]
    options += ["ac_cv_file__dev_ptmx=yes", "ac_cv_file__dev_ptc=no", "ac_cv_buggy_getaddrinfo=no"]
    options += ["ac_cv_func_preadv2=no", "ac_cv_func_pwritev2=no"]  # which musl before 1.2.5 lacks
    run("Python: configure", target, log, [source / "configure", *options], build, **tools)
    run(f"Python {PYTHON.version}: build", target, log, ["make", f"-j{jobs}", "python", "sharedmods"], build)
    minor = "python" + PYTHON.version.rpartition(".")[0]
    library = out / "lib" / minor
    shutil.copytree(source / "Lib", library, ignore=shutil.ignore_patterns("test", "idlelib", "tkinter", "ensurepip"))
    modules = library / "lib-dynload"
    modules.mkdir()
    for module in build.glob("build/lib.*/*.*"):
        shutil.copy(module, modules)
    (out / "bin").mkdir()
    shutil.copy(build / "python", out / "bin" / minor)
    shutil.rmtree(build)
    mark.write_text(made)
    return out


def wheel_of(system: System) -> Path:
    """Returns the wheel in `dist` for a system."""
    found = sorted(DIST.glob(f"pccl-*-abi3-{system.target}.whl"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise WheelsError(f"no wheel for {system.target} in {DIST}: make wheels WHEELS={system.target}")
    return found[-1]


def try_system(name: str, system: System, jobs: int) -> None:
    """Installs the wheel into a system and runs the program there, also with a hostile openssl.cnf."""
    root = unpacked(name, system)
    place = root / "opt" / "wheel"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    tags = [f"--platform={tag}" for tag in platforms(TARGETS[system.target], system.libc)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--implementation=cp"]
    call([*pip, f"--python-version={system.python}", *tags, f"--target={place}", wheel_of(system), "numpy"])
    shutil.copy(Path(__file__).with_name("wheel_program.py"), place)
    (place / "hostile.cnf").write_text(HOSTILE)
    python = "/usr/bin/python3"
    if system.compiled:
        shutil.rmtree(root / PYTHON_PLACE, ignore_errors=True)
        shutil.copytree(compiled_python(TARGETS[system.target], jobs), root / PYTHON_PLACE)
        python = f"/{PYTHON_PLACE}/bin/python{system.python}"
    program = [python, "/opt/wheel/wheel_program.py"]
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
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time; default: the processors")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.systems if name not in SYSTEMS]
    if unknown:
        parser.error(f"unknown system {unknown[0]}: choose from {', '.join(SYSTEMS)}")
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        parser.error("takes root and debootstrap: apt-get install debootstrap qemu-user-static")
    failed = False
    for name in arguments.systems or SYSTEMS:
        try:
            try_system(name, SYSTEMS[name], arguments.jobs)
        except WheelsError as error:
            print(f"wheels: {name}: {error}", file=sys.stderr, flush=True)
            failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
