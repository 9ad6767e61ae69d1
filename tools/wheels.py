"""Builds wheels that install on old systems too: `make wheels`, or python tools/wheels.py [--jobs N] [TARGET...]

Zig compiles for the oldest glibc or musl of each target, with LZ4 and OpenSSL linked statically and hidden. Their sources are
pinned below. The script keeps them, and what it builds of them, in `build/wheels`. Then it checks what the wheels need and
export, and has auditwheel (for glibc) and abi3audit judge them. A wheel that passes all checks is in `dist`.

Wheels are for all Pythons since 3.11; if a free-threaded Python runs the script, for the version of that one alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import check_hardening

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
PACKAGES = "ziglang auditwheel abi3audit wheel"


class WheelsError(Exception):
    """What stopped the build, for the person who started it."""


@dataclass(frozen=True)
class Target:
    """One kind of machine that a wheel is for."""

    tag: str  # of the platform, as in the name of the wheel
    zig: str  # with the oldest version of glibc
    openssl: str  # what OpenSSL's Configure calls it
    kernels: bool  # whether kernels for GPUs are in it

    @property
    def machine(self) -> str:
        """The processor, as Linux calls it."""
        return self.zig.split("-")[0]

    @property
    def flags(self) -> list[str]:
        """What OpenSSL and LZ4 are compiled with."""
        return [*COMPILE, *HARDEN, BRANCHES[self.machine]]

    @property
    def glibc(self) -> tuple[int, ...] | None:
        """The newest version of glibc's symbols that the wheel may use; None with musl."""
        version = re.search(r"gnu\.([\d.]+)", self.zig)
        return None if version is None else numbers(version[1])

    @property
    def suffix(self) -> str:
        """How the names of modules end for this Python there."""
        if not FREE_THREADED:
            return ".abi3.so"
        return f".cpython-{FREE_THREADED}-{self.machine}-linux-{'gnu' if self.glibc else 'musl'}.so"


@dataclass(frozen=True)
class Source:
    """The archive of a library that wheels carry."""

    name: str
    version: str
    sha256: str
    upstream: str
    debian: str  # below a Debian mirror; the same bytes
    licence: str  # in the archive

    @property
    def archive(self) -> str:
        """The name of the file below `sources`."""
        return f"{self.name}-{self.version}.tar.gz"


#: CUDA has no driver for systems with musl, so their wheels go without kernels for GPUs.
TARGETS = {
    target.tag: target
    for target in (
        Target("manylinux_2_28_x86_64", "x86_64-linux-gnu.2.28", "linux-x86_64", kernels=True),
        Target("manylinux_2_28_aarch64", "aarch64-linux-gnu.2.28", "linux-aarch64", kernels=True),
        Target("musllinux_1_2_x86_64", "x86_64-linux-musl", "linux-x86_64", kernels=False),
        Target("musllinux_1_2_aarch64", "aarch64-linux-musl", "linux-aarch64", kernels=False),
    )
}

OPENSSL = Source(
    "openssl",
    "3.5.7",
    "a8c0d28a529ca480f9f36cf5792e2cd21984552a3c8e4aa11a24aa31aeac98e8",
    "https://github.com/openssl/openssl/releases/download/openssl-3.5.7/openssl-3.5.7.tar.gz",
    "pool/main/o/openssl/openssl_3.5.7.orig.tar.gz",
    "LICENSE.txt",
)
LZ4 = Source(
    "lz4",
    "1.10.0",
    "537512904744b35e232912055ccf8ec66d768639ff3abe5788d90d792ec5f48b",
    "https://github.com/lz4/lz4/releases/download/v1.10.0/lz4-1.10.0.tar.gz",
    "pool/main/l/lz4/lz4_1.10.0.orig.tar.gz",
    "lib/LICENSE",
)

#: OpenSSL for TLS 1.3 with keys or certificates alone. It loads nothing at run time: no modules, and no openssl.cnf of the
#: system or of OPENSSL_CONF, which may be for another version. CAs come from files that the user names.
OPENSSL_WITHOUT = (
    "shared apps tests docs legacy engine dso module autoload-config async deprecated ui-console sock dgram http afalgeng "
    "padlockeng ssl-trace ssl3 tls1 tls1_1 tls1_2 dtls quic srp srtp nextprotoneg ct ocsp comp cmp cms ts rfc3779 "
    "aria argon2 bf blake2 camellia cast des dh dsa ec2m gost idea md4 mdc2 ml-dsa ml-kem ocb rc2 rc4 rmd160 scrypt seed "
    "siphash siv slh-dsa sm2 sm3 sm4 whirlpool"
)
COMPILE = ["-O3", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"]
#: As in CMakeLists.txt, which hardens the rest. tools/check_hardening.py reads it from the files of a wheel.
HARDEN = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
BRANCHES = {"x86_64": "-fcf-protection", "aarch64": "-mbranch-protection=standard"}
#: Where OpenSSL believes to be installed, and where auditwheel looks for libraries, so that they find nothing of this machine.
NOWHERE = "/nonexistent"

#: What a file of a wheel exports; a module exports its init function alone. spawned_master is a program.
EXPORTS = {
    "pccl/libpccl_cuda.so": {"pccl_cuda_abi", "pccl_cuda_open"},
    "pccl/spawned_master": set(),
}
MODULE = re.compile(r"pccl/(\w+)\.(abi3|cpython-\w+-\w+-linux-\w+)\.so")
#: The version of this Python if it is free-threaded, such as 314t. It has no limited API for its modules.
FREE_THREADED = f"3{sys.version_info.minor}t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
LIBRARIES_OF_GLIBC = re.compile(r"lib(c|m|dl|pthread|rt)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+")
#: Functions that musl has got since 1.2.0. A weak reference to one is fine.
NEWER_THAN_MUSL = {
    *("_Fork", "gettid", "reallocarray"),  # 1.2.2
    *("pthread_getname_np", "qsort_r"),  # 1.2.3
    *("preadv2", "pwritev2", "statx"),  # 1.2.5
}
LARGEST_MIB = 8


# ---- what needs no machine ----


def numbers(version: str) -> tuple[int, ...]:
    """`2.28` as numbers that compare."""
    return tuple(map(int, version.split(".")))


def glibc_floor(versions: Iterable[str]) -> tuple[int, ...]:
    """The oldest glibc with all of these versions of symbols: (2, 17) for GLIBC_2.2.5 and GLIBC_2.17; () for none."""
    return max((numbers(version.removeprefix("GLIBC_")) for version in versions if version.startswith("GLIBC_2")), default=())


@dataclass
class Binary:
    """What the dynamic linker reads of a file."""

    machine: str
    needed: list[str]
    versions: set[str]  # of the symbols that it needs, such as GLIBC_2.17
    strong: set[str]  # symbols that it needs
    exports: set[str]
    program: bool = False  # it may export data of the C library, which the linker copies into programs
    fixed: bool = False  # whether its code is at a known address


def breaches(name: str, binary: Binary, target: Target) -> list[str]:
    """Returns why a file must not be in a wheel for `target`, a line for each reason."""
    lines = []
    if binary.machine != target.machine:
        lines.append(f"it is for {binary.machine}, not for {target.machine}")
    if binary.fixed:
        lines.append("its code is at a fixed address, which helps attackers: link with -pie")
    module = MODULE.fullmatch(name)
    allowed = EXPORTS.get(name) if module is None else {f"PyInit_{module[1]}"}
    if allowed is None:
        lines.append("no such file is expected: list it in EXPORTS of tools/wheels.py, with what it may export")
    elif binary.exports - allowed:
        some = sorted(binary.exports - allowed)
        lines.append(f"it exports {', '.join(some[:5])}{f' and {len(some) - 5} more' if len(some) > 5 else ''}")
    elif allowed - binary.exports:
        lines.append(f"it does not export {', '.join(sorted(allowed - binary.exports))}")
    for library in binary.needed:
        if not (library == "libc.so" if target.glibc is None else LIBRARIES_OF_GLIBC.fullmatch(library)):
            lines.append(f"it needs {library}, which is not part of the C library")
    if target.glibc is None:
        if binary.versions:
            lines.append(f"it needs versions of symbols, which musl lacks: {', '.join(sorted(binary.versions))}")
        if binary.strong & NEWER_THAN_MUSL:
            lines.append(f"musl 1.2.0 lacks {', '.join(sorted(binary.strong & NEWER_THAN_MUSL))}")
    elif glibc_floor(binary.versions) > target.glibc:
        floor, wanted = (".".join(map(str, version)) for version in (glibc_floor(binary.versions), target.glibc))
        lines.append(f"it needs glibc {floor}, newer than {wanted}")
    return [f"{name}: {line}" for line in lines]


def judged_tag(words: str) -> str | None:
    """Returns the platform that `auditwheel show` prints; None for none."""
    found = re.search(r'platform tag:\s+"(\w+)"', words)
    return None if found is None else found[1]


def serves(judged: str, target: Target) -> bool:
    """Whether a wheel that is good for the platform `judged` is also good for the target, which may be newer."""
    of_judged, of_target = (re.fullmatch(r"(manylinux|musllinux)_(\d+)_(\d+)_(\w+)", tag) for tag in (judged, target.tag))
    if of_judged is None or of_target is None or of_judged.group(1, 4) != of_target.group(1, 4):
        return False
    return numbers(".".join(of_judged.group(2, 3))) <= numbers(".".join(of_target.group(2, 3)))


def addresses(source: Source, mirrors: Iterable[str]) -> list[str]:
    """Where to look for a source, in this order."""
    return [source.upstream, *(f"{mirror.rstrip('/')}/{source.debian}" for mirror in mirrors)]


def stamp(*parts: object) -> str:
    """What something was built from, to build it anew when that changes."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


# ---- the machine ----


def say(target: Target | None, words: str) -> None:
    """Prints one line of progress."""
    print(f"wheels: {f'{target.tag}: ' if target else ''}{words}", flush=True)


def zig() -> Path:
    """The compiler, from the package `ziglang`."""
    try:
        import ziglang
    except ImportError:
        raise WheelsError(f"the package ziglang is missing: {sys.executable} -m pip install {PACKAGES}") from None
    return Path(ziglang.__file__).with_name("zig")


def check_machine() -> None:
    """Raises WheelsError unless all programs that the build calls are there."""
    zig()
    folder = Path(sys.executable).parent
    wanted = ("auditwheel", *(() if FREE_THREADED else ("abi3audit",)), "wheel", "ninja")
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise WheelsError(f"{', '.join(missing)} missing in {folder}: {sys.executable} -m pip install {PACKAGES} ninja")
    missing = [name for name in ("make", "perl") if shutil.which(name) is None]
    if missing:
        raise WheelsError(f"{' and '.join(missing)} missing, which OpenSSL's build calls: apt-get install {' '.join(missing)}")


def run(words: str, target: Target, log: Path, command: Sequence[str | Path], folder: Path = ROOT, **environment: str) -> None:
    """Runs a command with its output in a log. If it fails, raises WheelsError with the end of the log."""
    began = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        out.write(f"$ {shlex.join(map(str, command))}\n".encode())
        out.flush()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = os.environ | {"PATH": path} | environment
        done = subprocess.run(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise WheelsError(f"{target.tag}: {words} failed with status {done.returncode}; the end of {log}:\n{tail}")
    say(target, f"{words}: {time.monotonic() - began:.0f} s")


def mirrors() -> list[str]:
    """The repositories of Debian that apt uses here, if it is there."""
    if shutil.which("apt-get") is None:
        return []
    found = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=False
    ).stdout.split()
    return sorted({uri for uri in found if "debian" in uri})


def fetched(source: Source) -> Path:
    """Returns the archive of a source, which it downloads unless it is there already. It is the pinned one or an error."""
    path = WORK / "sources" / source.archive
    path.parent.mkdir(parents=True, exist_ok=True)
    refused = []
    if not path.exists():
        for address in addresses(source, mirrors()):
            say(None, f"downloading {address}")
            try:
                with urllib.request.urlopen(address, timeout=60) as response:
                    content = response.read()
            except (OSError, urllib.error.URLError) as error:
                refused.append(f"{address}: {error}")
                continue
            if hashlib.sha256(content).hexdigest() != source.sha256:
                refused.append(f"{address}: another file, its SHA-256 is {hashlib.sha256(content).hexdigest()}")
                continue
            part = path.with_suffix(".part")
            part.write_bytes(content)
            part.rename(path)
            break
        else:
            tries = "".join(f"\n  {line}" for line in refused)
            raise WheelsError(f"{source.name} {source.version} could not be had; put it at {path}, or mend one of these:{tries}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != source.sha256:
        raise WheelsError(f"{path} is not {source.name} {source.version}: its SHA-256 is not {source.sha256}; delete it")
    return path


def unpacked(source: Source) -> Path:
    """Returns the folder of an unpacked source."""
    archive, folder = fetched(source), WORK / "sources" / f"{source.name}-{source.version}"
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
        next(part.iterdir()).rename(folder)  # an archive has one folder, of any name
        part.rmdir()
    return folder


def copy_licences() -> None:
    """Puts the licences of what wheels carry where the build of the package finds them."""
    folder = WORK / "licences"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (OPENSSL, LZ4):
        shutil.copy(unpacked(source) / source.licence, folder / f"LICENSE.{source.name}")


def compiler_version() -> str:
    """Returns the version of Zig."""
    return subprocess.run([zig(), "version"], capture_output=True, text=True, check=True).stdout.strip()


def write_toolchain(target: Target, folder: Path) -> None:
    """Writes cc, ar and ranlib for a target, and CMake's description of it."""
    tools = folder / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    for name, command in {"cc": f"cc -target {target.zig} -dynamic", "ar": "ar", "ranlib": "ranlib"}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(str(zig()))} {command} "$@"\n')
        (tools / name).chmod(0o755)
    values = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": target.machine,
        "CMAKE_C_COMPILER": tools / "cc",
        "CMAKE_AR": tools / "ar",
        "CMAKE_RANLIB": tools / "ranlib",
        "CMAKE_C_FLAGS_INIT": "-ffunction-sections -fdata-sections",
        "CMAKE_EXE_LINKER_FLAGS_INIT": "-pie -s -Wl,--gc-sections",
        **{f"CMAKE_{kind}_LINKER_FLAGS_INIT": "-s -Wl,--gc-sections" for kind in ("MODULE", "SHARED")},
        "OPENSSL_ROOT_DIR": folder / "openssl",
        "OPENSSL_USE_STATIC_LIBS": "ON",
        "LZ4_INCLUDE_DIR": folder / "lz4",
        "LZ4_LIBRARY": folder / "lz4" / "liblz4.a",
        "Python_INCLUDE_DIR": python_headers(),
    }
    lines = [f'set({name} "{value}")\n' for name, value in values.items()]
    lines += ["unset(Python_FIND_ABI CACHE)\n"] if FREE_THREADED else []  # CMake looks for it in places of this machine
    text, path = f"# for Zig {compiler_version()}\n{''.join(lines)}", folder / "toolchain.cmake"
    if not path.is_file() or path.read_text() != text:
        shutil.rmtree(folder / "package", ignore_errors=True)  # CMake would go on with the old flags
        path.write_text(text)


def python_headers() -> Path:
    """Returns a copy of this Python's headers, which serves all targets."""
    given = Path(sysconfig.get_path("include"))
    folder = WORK / "headers" / given.name
    if not (given / "Python.h").is_file():
        raise WheelsError(f"the headers of Python are missing: no {given / 'Python.h'}; apt-get install python3-dev")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(given, folder)
    # Debian's pyconfig.h includes one of those of its architectures.
    real = given.parent / str(sysconfig.get_config_var("MULTIARCH")) / given.name / "pyconfig.h"
    if real.is_file():
        shutil.copy(real, folder / "pyconfig.h")
    return folder


def build_openssl(target: Target, folder: Path, jobs: int) -> None:
    """Builds OpenSSL's static libraries into `folder`/openssl, unless those there are of the same source and options."""
    source, out, log = unpacked(OPENSSL), folder / "openssl", folder / "openssl.log"
    made = stamp(OPENSSL, OPENSSL_WITHOUT.split(), target.flags, target, compiler_version())
    mark = out / "stamp"
    if mark.is_file() and mark.read_text() == made:
        return
    build = folder / "openssl-build"
    for old in (out, build):
        shutil.rmtree(old, ignore_errors=True)
    build.mkdir(parents=True)
    log.unlink(missing_ok=True)
    tools = {name.upper(): str(folder / "bin" / name) for name in ("cc", "ar", "ranlib")}
    options = [target.openssl, f"--prefix={NOWHERE}", f"--openssldir={NOWHERE}", "--libdir=lib"]
    without = [f"no-{what}" for what in OPENSSL_WITHOUT.split()]
    run("OpenSSL: configure", target, log, [source / "Configure", *options, *without, *target.flags], build, **tools)
    run(f"OpenSSL {OPENSSL.version}: build", target, log, ["make", f"-j{jobs}", "build_libs"], build)
    run("OpenSSL: install", target, log, ["make", "install_dev", f"DESTDIR={folder / 'stage'}"], build)
    (folder / "stage" / NOWHERE.strip("/")).rename(out)
    shutil.rmtree(folder / "stage")
    shutil.rmtree(build)
    mark.write_text(made)


def build_lz4(target: Target, folder: Path) -> None:
    """Builds the part of LZ4 that pccl calls into `folder`/lz4."""
    source, out, log = unpacked(LZ4) / "lib", folder / "lz4", folder / "lz4.log"
    made, mark = stamp(LZ4, target.flags, target, compiler_version()), out / "stamp"
    if mark.is_file() and mark.read_text() == made:
        return
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    log.unlink(missing_ok=True)
    run(f"LZ4 {LZ4.version}", target, log, [folder / "bin" / "cc", *target.flags, "-c", source / "lz4.c", "-o", out / "lz4.o"])
    run("LZ4: archive", target, log, [folder / "bin" / "ar", "rcs", out / "liblz4.a", out / "lz4.o"])
    shutil.copy(source / "lz4.h", out)
    mark.write_text(made)


def build_wheel(target: Target, folder: Path, jobs: int) -> Path:
    """Builds the package into `folder`/raw and returns the wheel, whose platform is still plain Linux."""
    raw, log = folder / "raw", folder / "wheel.log"
    shutil.rmtree(raw, ignore_errors=True)
    log.unlink(missing_ok=True)
    defines = {
        "CMAKE_TOOLCHAIN_FILE": folder / "toolchain.cmake",
        "PCCL_MODULES": folder / "modules",
        "PCCL_LZ4": "REQUIRED",
        "PCCL_TLS": "REQUIRED",
        "PCCL_CUDA_KERNELS": "ON" if target.kernels else "OFF",
    }
    settings = [f"cmake.define.{name}={value}" for name, value in defines.items()]
    settings += [f"build-dir={folder / 'package'}", f"wheel.license-files=LICENSE;{WORK.relative_to(ROOT)}/licences/*"]
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--wheel-dir",
        raw,
        "--verbose",
    ]
    platform = {"_PYTHON_HOST_PLATFORM": f"linux-{target.machine}", "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    if FREE_THREADED:
        platform["SETUPTOOLS_EXT_SUFFIX"] = target.suffix
    command += [*(f"--config-settings={setting}" for setting in settings), "."]
    run("pccl", target, log, command, ROOT, **platform)
    return next(raw.glob("*.whl"))


def read_binary(content: Path) -> Binary:
    """Reads an ELF file."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection
    from elftools.elf.sections import SymbolTableSection

    with content.open("rb") as file:
        elf = ELFFile(file)
        machine = {"x64": "x86_64", "AArch64": "aarch64"}.get(elf.get_machine_arch(), elf.get_machine_arch())
        binary = Binary(machine, [], set(), set(), set(), any(part["p_type"] == "PT_INTERP" for part in elf.iter_segments()))
        binary.fixed = elf.header["e_type"] == "ET_EXEC"
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                tags: list[Any] = [*section.iter_tags()]
                binary.needed = [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
            elif isinstance(section, GNUVerNeedSection):
                binary.versions = {version.name for _, versions in section.iter_versions() for version in versions}
            elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
                for symbol in section.iter_symbols():
                    binding, defined = symbol["st_info"]["bind"], symbol["st_shndx"] != "SHN_UNDEF"
                    copied = binary.program and symbol["st_info"]["type"] == "STT_OBJECT"
                    if symbol.name and defined and not copied:
                        binary.exports.add(symbol.name)
                    elif symbol.name and not defined and binding != "STB_WEAK":
                        binary.strong.add(symbol.name)
    return binary


def check_wheel(wheel: Path, target: Target) -> None:
    """Raises WheelsError if a file of the wheel needs or exports what it must not, or if the wheel is too large."""
    folder, lines = wheel.parent / "content", []
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    binaries = {name: path for name, path in found.items() if path.read_bytes()[:4] == b"\x7fELF"}
    lines += [f"{name} is missing" for name in (*EXPORTS, f"pccl/_native{target.suffix}") if name not in binaries]
    floors = []
    for name, path in binaries.items():
        binary = read_binary(path)
        lines += breaches(name, binary, target)
        hardened = check_hardening.read(path.read_bytes())
        lines += [f"{name}: {line}" for line in check_hardening.breaches(hardened, glibc=target.glibc is not None)]
        floors.append(glibc_floor(binary.versions))
    lines += [
        f"the licence of {source.name} is missing"
        for source in (OPENSSL, LZ4)
        if not any(name.endswith(f"LICENSE.{source.name}") for name in found)
    ]
    mib = wheel.stat().st_size / 2**20
    if mib >= LARGEST_MIB:
        lines.append(f"it has {mib:.1f} MiB, and no wheel may have {LARGEST_MIB}")
    if lines:
        raise WheelsError("\n  ".join([f"{target.tag}: {wheel.name} must not be published:", *lines]))
    floor = f"glibc {'.'.join(map(str, max(floors)))}" if target.glibc else "musl 1.2"
    say(target, f"{mib:.2f} MiB; {len(binaries)} binaries need {floor} or later, and export what they must")


def make_wheel(target: Target, jobs: int) -> Path:
    """Builds one wheel, checks it, and returns its place in `dist`."""
    folder = WORK / target.tag
    folder.mkdir(parents=True, exist_ok=True)
    write_toolchain(target, folder)
    build_openssl(target, folder, jobs)
    build_lz4(target, folder)
    copy_licences()
    raw = build_wheel(target, folder, jobs)
    check_wheel(raw, target)
    audit, log = Path(sys.executable).parent, folder / "audit.log"
    log.unlink(missing_ok=True)
    run("tag", target, log, [audit / "wheel", "tags", "--remove", f"--platform-tag={target.tag}", raw])
    python = f"cp{FREE_THREADED[:-1]}-cp{FREE_THREADED}" if FREE_THREADED else "cp311-abi3"
    wheel = next(raw.parent.glob(f"*-{python}-{target.tag}.whl"))
    if target.glibc is not None:  # auditwheel knows the library of musl only by the name that Alpine gives it
        run("auditwheel", target, log, [audit / "auditwheel", "show", f"--ldpaths={NOWHERE}", wheel])
        judged = judged_tag(log.read_text())
        if judged is None or not serves(judged, target):
            raise WheelsError(f"{target.tag}: auditwheel says {judged or 'no platform'}; see {log}")
    if not FREE_THREADED:
        run("abi3audit", target, log, [audit / "abi3audit", "--strict", "--verbose", wheel])
    DIST.mkdir(exist_ok=True)
    shutil.copy(wheel, DIST)
    return DIST / wheel.name


def main() -> int:
    """Builds the wheels that the command line names; returns 1 if one cannot be built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time; default: the processors")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {unknown[0]}: choose from {', '.join(TARGETS)}")
    try:
        check_machine()
        for name in arguments.targets or TARGETS:
            wheel = make_wheel(TARGETS[name], arguments.jobs)
            say(TARGETS[name], str(wheel.relative_to(ROOT)))
    except WheelsError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
