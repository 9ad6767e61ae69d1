"""The names that PCCL keeps in this module: those of `pccl`, `ffi` and `C`."""

from typing import Any

import pccl
from pccl import _native
from pccl import cuda as cuda
from pccl._exports import modules_of

ffi: Any = _native.ffi
C: Any = _native.lib
globals().update({name: getattr(pccl, name) for name, module in modules_of("pccl").items() if module != "pccl"})
