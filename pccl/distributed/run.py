"""`python -m pccl.distributed.run script.py arguments...`: a script under a supervisor that absorbs its death.

A launcher such as torchrun ends the whole job when one of its processes dies. It does not see the death of a script that runs
under a supervisor: `torchrun -m pccl.distributed.run script.py`, or `supervise()` as the first call of the script itself.
"""

from __future__ import annotations

import os
import sys

from pccl.distributed._supervise import become_supervisor

USAGE = """usage: python -m pccl.distributed.run [--restarts N] [--as NAME] script.py [arguments...]
       python -m pccl.distributed.run [--restarts N] [--as NAME] -m module [arguments...]
       torchrun [options] -m pccl.distributed.run script.py [arguments...]

Runs a script as a child. When the child is killed, the others go on without it, and the launcher, which would end the whole job,
does not notice: the status is 0 as long as the others go on. SIGINT, SIGTERM and other signals are passed on to the child.

  --restarts N  start a child that was killed anew up to N times; it joins the run of the others (default: PCCL_RESTARTS, or 0)
  --as NAME     take the place of the backend NAME, such as gloo: a script or framework that asks for NAME, or for no backend,
                gets pccl
  -h, --help    show this
"""


def main(arguments: list[str]) -> None:
    """Becomes the supervisor of the script."""
    restarts = os.environ.get("PCCL_RESTARTS", "")
    replaced = ""
    while arguments and arguments[0].startswith("-") and arguments[0] != "-m":
        option, *arguments = arguments
        name, equals, value = option.partition("=")
        if name in ("-h", "--help"):
            print(USAGE, end="")
            sys.exit(0)
        if name in ("--restarts", "--as") and not equals and arguments:
            value, *arguments = arguments
        if name == "--restarts" and value.isdecimal():
            restarts = value
        elif name == "--as" and value.isidentifier():
            replaced = value
        else:
            print(f"{USAGE}\nerror: {option!r} is not understood", file=sys.stderr)
            sys.exit(2)
    if not arguments or arguments == ["-m"]:
        print(f"{USAGE}\nerror: which script is missing", file=sys.stderr)
        sys.exit(2)
    runner = ["-m", "pccl.distributed._as", replaced] if replaced else []
    become_supervisor([sys.executable, "-u", *runner, *arguments], restarts)


if __name__ == "__main__":
    main(sys.argv[1:])
