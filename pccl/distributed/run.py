"""`python -m pccl.distributed.run script.py arguments...`: a script under a supervisor that absorbs its death.

A launcher such as torchrun ends the whole job when one of its processes dies. It does not see the death of a script that runs
under a supervisor: `torchrun -m pccl.distributed.run script.py`, or `supervise()` as the first call of the script itself.
"""

from __future__ import annotations

import os
import sys

from pccl.distributed._supervise import become_supervisor

USAGE = """usage: python -m pccl.distributed.run [--restarts N] script.py [arguments...]
       python -m pccl.distributed.run [--restarts N] -m module [arguments...]
       torchrun [options] -m pccl.distributed.run script.py [arguments...]

Runs a script as a child. When the child is killed, the others go on without it, and the launcher, which would end the whole job,
does not notice: the status is 0 as long as the others go on. SIGINT, SIGTERM and other signals are passed on to the child.

  --restarts N  start a child that was killed anew up to N times; it joins the run of the others (default: PCCL_RESTARTS, or 0)
  -h, --help    show this
"""


def main(arguments: list[str]) -> None:
    """Becomes the supervisor of the script."""
    restarts = os.environ.get("PCCL_RESTARTS", "")
    while arguments and arguments[0].startswith("-") and arguments[0] != "-m":
        option, *arguments = arguments
        name, equals, value = option.partition("=")
        if name in ("-h", "--help"):
            print(USAGE, end="")
            sys.exit(0)
        if name == "--restarts" and not equals and arguments:
            value, *arguments = arguments
        if name != "--restarts" or not value.isdecimal():
            print(f"{USAGE}\nerror: {option!r} is not understood", file=sys.stderr)
            sys.exit(2)
        restarts = value
    if not arguments or arguments == ["-m"]:
        print(f"{USAGE}\nerror: which script is missing", file=sys.stderr)
        sys.exit(2)
    become_supervisor([sys.executable, "-u", *arguments], restarts)


if __name__ == "__main__":
    main(sys.argv[1:])
