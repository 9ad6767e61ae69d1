#!/usr/bin/env python3
"""Builds the simulator for browsers, one file that needs no server: tools/site/simulator.py OUT.html

It compiles the simulator and the state machines that ship with `zig cc` (`pip install ziglang`) to WebAssembly, and puts it
into sim/web/page.html.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "sim" / "web"
VERSION = (ROOT / "pccl" / "_version.py").read_text().split('"')[-2]
STACK_BYTES = 4 << 20

PARTS = [
    "sim/*.c",
    "sim/web/*.c",
    "csrc/base/detail.c",
    "csrc/base/memory_grow.c",
    "csrc/compute/*.c",
    "csrc/link/pace.c",
    "csrc/master/*.c",
    "csrc/net/arrival.c",
    "csrc/net/peer_name.c",
    "csrc/net/wire*.c",
    "csrc/ops/*.c",
    "csrc/peer/decision.c",
    "csrc/peer/leaving.c",
    "csrc/peer/member*.c",
    "csrc/peer/mesh.c",
    "csrc/peer/recovery.c",
    "csrc/state/delta.c",
    "csrc/state/leaf.c",
    "csrc/topology/*.c",
]

WITHOUT = ["sim/refuse.c", "csrc/compute/kernels_avx*.c", "csrc/compute/kernels_neon.c"]
WITHOUT += ["csrc/master/master*.c", "csrc/master/status_query.c"]
"""Those that refuse memory, are for other processors, or face the operating system: sim/web/system.c is in their place."""


def sources() -> list[Path]:
    """All that is compiled."""
    left_out = {path for pattern in WITHOUT for path in ROOT.glob(pattern)}
    return [path for pattern in PARTS for path in sorted(ROOT.glob(pattern)) if path not in left_out]


def compile_to(module: Path) -> None:
    """CalledProcessError: the compiler has said why."""
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi"]
    include = ["-I", str(ROOT), "-I", str(ROOT / "csrc"), "-I", str(ROOT / "csrc" / "include")]
    flags = [
        "-std=c11",
        "-Oz",
        "-D_GNU_SOURCE",
        "-DSIM_SLOTS=16",
        f'-DPCCL_VERSION="{VERSION}"',
        "-Wno-macro-redefined",
        *include,
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        objects = [Path(folder) / f"{number}.o" for number in range(len(sources()))]

        def compile_one(source: Path, to: Path) -> None:
            subprocess.run([*zig, *flags, "-c", str(source), "-o", str(to)], check=True)

        list(pool.map(compile_one, sources(), objects))
        link = ["-mexec-model=reactor", "-Oz", "-s", f"-Wl,-z,stack-size={STACK_BYTES}", "-Wl,--gc-sections"]
        subprocess.run([*zig, *link, "-o", str(module), *map(str, objects)], check=True)


def build(page: Path) -> None:
    """Writes the page."""
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "simulator.wasm"
        compile_to(module)
        code = base64.b64encode(module.read_bytes()).decode()
    text = (WEB / "page.html").read_text()
    script = (WEB / "page.js").read_text().replace("@MODULE@", code)
    page.write_text(text.replace("@SCRIPT@", script))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
