"""Writes the transcripts of commands in README and docs: python tools/transcripts.py [--check] [--all] [PART...]

A transcript is a block whose first line begins with `$ `. The script runs that command and writes what TRANSCRIPTS keeps of its
output. A block that differs in volatile places only stays as it is. With --check nothing is written, and a block that differs
is an error. Without --all, and without parts of commands, it runs the quick commands alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```\n\$ (?P<command>[^\n]*)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {
    "python": [],
    "pccl": ["-m", "pccl"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"],
}
"""How the first word of a command is run by this Python, on free ports."""


@dataclass(frozen=True)
class Transcript:
    """How the output of one command gets into its page."""

    page: str  # below the root of the checkout
    command: str
    keep: str  # a line that the page shows
    volatile: str  # parts of a line that each run has its own of
    quick: bool = False  # whether it takes a second or two


TRANSCRIPTS = (
    Transcript("README.md", "python examples/all_reduce.py", r"peer \d: ", r"(?!)", quick=True),
    Transcript(
        "docs/sharded.md",
        "torchrun --nproc_per_node 4 examples/fsdp_elastic.py --kill 1 --restarts 1 --pause 0.3",
        r"step (0|1[0-9]\d): (rank 0|the newcomer) |step 10\d: rank 1 kills |pccl supervisor",
        r"(?<=^step )1[1-9]\d",
    ),
    Transcript(
        "docs/stress.md",
        'pccl stress --program "python examples/survivor.py 600" --seconds 8 --every 2',
        r".*(make progress;|kill of|restart of|cut \()|ok .*same: |PASSED",
        r" *\d+\.\d+|(?<=at step )\d+|\d+(?= steps)",
    ),
)


class TranscriptError(Exception):
    """A block that is not what its command prints, or a command that fails."""


def blocks() -> list[tuple[str, str]]:
    """Returns page and command of each transcript that a page has."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        (str(page.relative_to(ROOT)), block["command"]) for page in pages for block in BLOCK.finditer(page.read_text("utf-8"))
    ]


def kept(transcript: Transcript, output: str) -> list[str]:
    """Returns the lines that the page shows. Processes that share a pipe may leave two of them on one line."""
    lines = re.sub(r"(?<=[^\n])(?=step \d+: )", "\n", output).splitlines()
    return [line for line in lines if re.match(transcript.keep, line)]


def shape(transcript: Transcript, lines: list[str]) -> list[str]:
    """Returns the lines without what each run has its own of. Processes print in any order."""
    return sorted(re.sub(transcript.volatile, "#", line) for line in lines)


def run(command: str) -> str:
    """Returns what a command prints, in a folder that has the examples alone. Raises TranscriptError if it fails."""
    program, *arguments = shlex.split(command)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PCCL_", "PYTHON"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        words = [sys.executable, *PROGRAMS[program], *arguments]
        done = subprocess.run(
            words, cwd=folder, env=environment, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    if done.returncode != 0:
        raise TranscriptError(f"`{command}` failed with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def update(transcript: Transcript, output: str, check: bool) -> bool:
    """Writes the output into the page unless it is there, and returns whether it wrote. With `check` it raises instead."""
    page = ROOT / transcript.page
    text = page.read_text("utf-8")
    [block] = [block for block in BLOCK.finditer(text) if block["command"] == transcript.command]
    lines = kept(transcript, output)
    shown = [line for line in block["output"].splitlines() if line != "..."]
    if shape(transcript, shown) == shape(transcript, lines):
        return False
    if check:
        raise TranscriptError(f"{transcript.page}: `{transcript.command}` prints now:\n" + "\n".join(lines))
    page.write_text(text[: block.start("output")] + "".join(f"{line}\n" for line in lines) + text[block.end("output") :], "utf-8")
    return True


def main() -> int:
    """Returns 1 if a block is wrong, or a command fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="run the commands that contain one of these")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--all", action="store_true", help="run the slow ones, too")
    arguments = parser.parse_args()
    for transcript in TRANSCRIPTS:
        named = any(part in transcript.command for part in arguments.parts)
        if not (named or arguments.all or (transcript.quick and not arguments.parts)):
            continue
        try:
            wrote = update(transcript, run(transcript.command), arguments.check)
        except TranscriptError as error:
            print(f"transcripts: {error}", file=sys.stderr)
            return 1
        print(f"transcripts: {transcript.page}: {'written' if wrote else 'as it was'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
