"""The entry points of the commands `pccl` and `pccl_master`.

It is no part of `pccl`, so that Ctrl-C ends the imports of `pccl`, too, with one line. `pccl master` becomes a native program
before anything costly is imported; the other commands need click and rich.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130
MISSING = 2

WITHOUT_CLICK = """\
Usage: pccl master [OPTIONS]

  Runs a master, or a standby: pccl master --help

  The other commands need {missing}: pip install click rich
"""


def main() -> None:
    """Runs `pccl`."""
    if sys.argv[1:2] == ["master"]:
        run_master("pccl master", sys.argv[2:])
    heeds = _heed_interrupts()
    try:
        from pccl.cli import main as command
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        _tell_what_is_missing(error.name)
    if heeds:
        import signal

        signal.signal(signal.SIGINT, signal.default_int_handler)
    command(prog_name="pccl")


def master() -> None:
    """Runs `pccl_master`."""
    run_master("pccl_master", sys.argv[1:])


def run_master(program: str, arguments: list[str]) -> NoReturn:
    """Becomes the native program of a master, or runs one in this process."""
    from pccl_command.native_master import hand_over

    hand_over(program, arguments)
    _heed_interrupts()
    try:
        from pccl.cli.master import command
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit(f"{program} needs click to check its options; pip install click")
    command.main(arguments, prog_name=program)  # sets its own signal handlers
    raise AssertionError("it ends the process")


def _heed_interrupts() -> bool:
    """Makes Ctrl-C end the process with one line. Returns False if it is ignored, as by a job of a script in the background."""
    import signal

    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, _end)
    return heeds


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
