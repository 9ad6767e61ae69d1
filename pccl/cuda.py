"""The public name of `pccl._cuda`, which is the same module."""

import sys

from pccl import _cuda
from pccl._cuda import *  # noqa: F403 - for type checkers

sys.modules[__name__] = _cuda
