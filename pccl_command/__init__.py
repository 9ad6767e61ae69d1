"""The entry point of the `pccl` command.

It is no part of `pccl`, so that Ctrl-C ends the imports of `pccl`, too, with one line. `pccl master` needs cffi alone; the other
commands need click and rich.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
MISSING = 2

WITHOUT_CLICK = """\
Usage: pccl master [OPTIONS]

  Runs a master, or a standby: pccl master --help

  The other commands need {missing}: pip install click rich
"""


def main() -> None:
    """Run the command."""
    # Else Ctrl-C is ignored, as by a job that a script has put into the background.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, _end)
    if sys.argv[1:2] == ["master"]:
        from pccl.master import main as master

        master(sys.argv[2:], program="pccl master")  # sets its own signal handlers
    try:
        from pccl.cli import main as command
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        _tell_what_is_missing(error.name)
    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command(prog_name="pccl")


def _tell_what_is_missing(module: str) -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(WITHOUT_CLICK.format(missing=module), end="")
        sys.exit(0)
    print(f"pccl {arguments[0]} needs {module}: pip install click rich", file=sys.stderr)
    sys.exit(MISSING)


def _end(number: int, frame: FrameType | None) -> None:
    """An exception would come out of the midst of an import, some of which make another one of it."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
