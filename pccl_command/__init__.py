"""The entry point of the `pccl` command, which Ctrl-C ends in one line from the beginning on.

It is no part of `pccl`, whose imports take most of the time until a command begins, and come before those of `pccl.cli`.
"""

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command."""
    # Else Ctrl-C is ignored, as by a job that a script has put into the background.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, _end)
    from pccl.cli import main as command

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def _end(number: int, frame: FrameType | None) -> None:
    """An exception would come out of the midst of an import, some of which make another one of it."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
