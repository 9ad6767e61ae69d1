"""`pccl sim`. The simulator is in `sim/` of a checkout: it is a tool for the developers of pccl, and the package lacks it.

This module replaces itself by `sim/command.py` of the checkout that the package is imported from.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

_CHECKOUT = Path(__file__).resolve().parents[2]
_SOURCE = _CHECKOUT / "sim" / "command.py"

if not (_SOURCE.is_file() and (_CHECKOUT / "csrc").is_dir()):
    raise click.UsageError(
        "pccl sim needs a checkout of pccl, because the package lacks the simulator: "
        "clone the repository, run `make build` there, and then `.venv/bin/pccl sim`"
    )
_spec = importlib.util.spec_from_file_location(__name__, _SOURCE)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[__name__] = _module
_spec.loader.exec_module(_module)
