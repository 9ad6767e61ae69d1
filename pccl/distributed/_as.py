"""`python -m pccl.distributed._as NAME FRAMEWORK script.py arguments...`: a script with `--as` and `--adapt`; "-" is for none.

Frameworks such as accelerate choose the backend by the device, and refuse a name that they do not know.
"""

from __future__ import annotations

import functools
import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

import pccl.distributed  # noqa: F401  # registers the backend


def take_the_place_of(name: str) -> None:
    """Lets `init_process_group` make a group of pccl where it is asked for `name`, in whatever form, or for no backend.

    Groups that `new_group` makes with a backend of their own stay what they are.
    """
    original = distributed_c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *arguments: Any, **named: Any) -> None:
        asked = "" if backend is None else str(backend).lower()
        if not asked or any(part.rpartition(":")[2] == name for part in asked.split(",")):
            backend = "pccl"
        original(backend, *arguments, **named)

    for module in (dist, distributed_c10d, device_mesh):  # which have the function by name
        module.init_process_group = init_process_group  # type: ignore[attr-defined]


def run_program(arguments: list[str]) -> None:
    """Runs a script, or with -m a module, in this process."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def main(arguments: list[str]) -> None:
    name, framework, *program = arguments
    if name != "-":
        take_the_place_of(name)
    if framework != "-":
        importlib.import_module(f"pccl.integrations.{framework}").adapt()
    run_program(program)


if __name__ == "__main__":
    main(sys.argv[1:])
