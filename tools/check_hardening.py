"""Checks that what was built is hardened against faults in its memory.

    python tools/check_hardening.py [--require] [FILE...]

Each file must bind its symbols at its start (BIND_NOW), then make their table read-only (RELRO), have no executable stack and
no code at a known address, and be compiled with a stack protector, with _FORTIFY_SOURCE where the C library is glibc, and with
control-flow protection (CET on x86-64, BTI and PAC on aarch64). The script reads the modules and the program in `pccl/`, or
FILEs, without other tools. Without an up-to-date build it says so and returns 0, or 1 with --require.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PT_LOAD, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
DT_FLAGS, DT_FLAGS_1, BIND_NOW, NOW, EXECUTABLE = 30, 0x6FFFFFFB, 8, 1, 1
ET_EXEC, SHT_DYNSYM, SHN_UNDEF = 2, 11, 0
#: By machine: the first instructions of functions that are the target of an indirect branch, or sign where they return to.
LANDINGS = {62: (b"\xf3\x0f\x1e\xfa",), 183: (b"\x3f\x23\x03\xd5", b"\x5f\x24\x03\xd5")}
#: Landings that the C library's own start files have.
FOREIGN_LANDINGS = 8
#: Functions that glibc always replaces by others that check, at -D_FORTIFY_SOURCE=2 or higher.
REPLACED = {"snprintf", "vsnprintf", "fprintf", "printf", "asprintf", "vfprintf", "sprintf"}


@dataclass
class File:
    """What an ELF file of 64 bits, little-endian, says of itself."""

    machine: int
    fixed: bool
    flags: dict[int, int] = field(default_factory=dict)  # the dynamic section, by tag
    segments: dict[int, int] = field(default_factory=dict)  # flags, by type
    landings: int = 0
    imports: set[str] = field(default_factory=set)


def read(content: bytes) -> File:
    """Reads a file. ValueError: it is none."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no ELF file of 64 bits, little-endian")
    kind, machine = struct.unpack_from("<HH", content, 16)
    programs, sections = struct.unpack_from("<QQ", content, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", content, 54)
    file = File(machine, kind == ET_EXEC)
    for number in range(program_count):
        at = programs + number * program_size
        segment, flags, offset, _, _, length = struct.unpack_from("<IIQQQQ", content, at)
        file.segments[segment] = flags
        if segment == PT_LOAD and flags & EXECUTABLE:
            file.landings += sum(content.count(mark, offset, offset + length) for mark in LANDINGS.get(machine, ()))
        if segment == PT_DYNAMIC:
            file.flags = dict(struct.iter_unpack("<QQ", content[offset : offset + length // 16 * 16]))
    for number in range(section_count):
        at = sections + number * section_size
        if struct.unpack_from("<I", content, at + 4)[0] == SHT_DYNSYM:
            offset, length, link = struct.unpack_from("<QQI", content, at + 24)
            (strings,) = struct.unpack_from("<Q", content, sections + link * section_size + 24)
            file.imports = set(_imports(content, offset, length, strings))
    return file


def _imports(content: bytes, offset: int, length: int, strings: int) -> Iterator[str]:
    for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", content[offset : offset + length // 24 * 24]):
        if section == SHN_UNDEF and name:
            yield content[strings + name : content.index(b"\0", strings + name)].decode()


def breaches(file: File, *, glibc: bool = True) -> list[str]:
    """Returns what a file lacks, with the flag that adds it."""
    lines = []
    if not (file.flags.get(DT_FLAGS, 0) & BIND_NOW or file.flags.get(DT_FLAGS_1, 0) & NOW):
        lines.append("it binds its symbols late: link with -Wl,-z,now")
    if PT_GNU_RELRO not in file.segments:
        lines.append("the table of its symbols can be written: link with -Wl,-z,relro")
    if file.segments.get(PT_GNU_STACK, EXECUTABLE) & EXECUTABLE:
        lines.append("its stack is executable: link with -Wl,-z,noexecstack")
    if file.fixed:
        lines.append("its code is at a known address: link with -pie")
    if "__stack_chk_fail" not in file.imports:
        lines.append("it has no stack protector: compile with -fstack-protector-strong")
    checked = any(name.startswith("__") and name.endswith("_chk") for name in file.imports)
    if glibc and not checked and file.imports & REPLACED:
        lines.append("calls of the C library are not checked: compile with -D_FORTIFY_SOURCE=2 or 3")
    if file.machine in LANDINGS and file.landings <= FOREIGN_LANDINGS:
        flag = "-fcf-protection" if file.machine == 62 else "-mbranch-protection=standard"
        lines.append(f"its branches are not protected: compile with {flag}")
    return lines


def built() -> list[Path]:
    """The modules and programs of the checkout, if they are newer than the flags that they are built with."""
    mark = ROOT / ".venv" / "built"
    if not mark.is_file() or mark.stat().st_mtime < (ROOT / "CMakeLists.txt").stat().st_mtime:
        return []
    return sorted((ROOT / "pccl").glob("*.so")) + sorted((ROOT / "pccl").glob("spawned_master"))


def main() -> int:
    """Prints each breach; returns 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: what the checkout has in pccl/")
    parser.add_argument("--require", action="store_true", help="fail if no build is up to date")
    arguments = parser.parse_args()
    files = arguments.files or built()
    if not files:
        print("hardening: not checked, no build is up to date (`make build` makes one)")
        return 1 if arguments.require else 0
    lines = [f"{path}: {line}" for path in files for line in breaches(read(path.read_bytes()))]
    print(*lines, sep="\n", end="\n" if lines else "")
    print(f"hardening: {len(files)} files, {len(lines)} breaches")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
