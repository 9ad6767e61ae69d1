"""What encryption costs one stream over loopback: throughput, and processor time for each GiB."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import harness
from harness import Row

from pccl import _keys

METHOD = """One process; one thread sends 1 MiB at a time over one loopback connection, another one receives. Blocks of plain TCP,
of TLS (csrc/net/tls.h) and of AES-128-GCM alone take turns; medians. Processor time is that of both threads, user and system.
The cipher alone encrypts and decrypts records of 16 KiB that stay in the cache. It takes no copies and no system calls."""

EXPLAINED = 0.8
"""Part of the additional processor time that the cipher alone should explain."""


def measure(seconds: float, blocks: int) -> dict[str, list[tuple[float, float]]]:
    """Returns GiB/s and processor seconds per GiB of each block, by method."""
    program = harness.build("encryption")
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        _, peer = _keys.write_files(Path(folder) / "run", _keys.new_keys())
        command = [str(program), str(peer), str(seconds), str(blocks)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise harness.BenchError(f"the program failed: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        method, rate, processor = line.split()
        found[method].append((float(rate), float(processor)))
    return found


def openssl_speed() -> float | None:
    """GiB/s of one direction of AES-128-GCM, by OpenSSL's own measurement; None: its program is not here."""
    if shutil.which("openssl") is None:
        return None
    command = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-gcm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.split()[-1] if done.stdout.split() else ""
    return float(last.removesuffix("k")) * 1000 / (1 << 30) if last.endswith("k") else None


def run() -> None:
    parser = harness.parser(__doc__, blocks=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a block")
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    processor: dict[str, float] = {}
    for method, blocks in measure(args.seconds, args.blocks).items():
        processor[method] = median(block[1] for block in blocks)
        rows.append({"method": method, "GiB/s": median(block[0] for block in blocks), "processor s/GiB": processor[method]})
    speed = openssl_speed()
    if speed is not None:
        rows.append({"method": "openssl speed, one direction", "GiB/s": speed, "processor s/GiB": 1 / speed})
    part = processor["aes-128-gcm"] / (processor["tls"] - processor["plain"])
    what = "part of the additional processor time of TLS that AES-128-GCM alone takes"
    bars = [harness.bar(what, f"at least {EXPLAINED:.0%}", f"{part:.0%}", part >= EXPLAINED)]
    harness.report(args, "encryption", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
