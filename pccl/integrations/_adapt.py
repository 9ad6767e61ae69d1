"""`python -m pccl.integrations._adapt NAME script.py arguments...`: runs a script whose framework gets its adapter by itself."""

from __future__ import annotations

import importlib
import sys

from pccl.distributed._as import run_program


def main(arguments: list[str]) -> None:
    name, *arguments = arguments
    importlib.import_module(f"pccl.integrations.{name}").adapt()
    run_program(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
