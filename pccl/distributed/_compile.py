"""Keeps torch.compile out of the methods of process groups: it cannot trace them, since torch treats a group as opaque.

DDP calls a group from C++ in the middle of a compiled forward pass, and compiled functions call one by torch.distributed. In both
cases the call has to run as it is, as that of a group in C++ does. `torch.compiler.disable` would do, but imports all of dynamo.
"""

from __future__ import annotations

import sys
import types

from torch._C._dynamo import eval_frame

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
_PYTHON_REDUCERS = ("python_reducer", "python_reducer_without_compiled_forward")


def untraced(kind: type) -> type:
    """Marks all methods that a class defines or inherits from classes of pccl, and what they call, as not to be traced."""
    for base in kind.__mro__:
        if base.__module__.startswith("pccl."):
            for member in vars(base).values():
                function = member.fget if isinstance(member, property) else member
                if isinstance(function, types.FunctionType):
                    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
                    vars(function)["_torchdynamo_disable"] = True
                    vars(function)["_torchdynamo_disable_msg"] = "a collective of pccl runs outside of compiled graphs"
    return kind


def refuse_python_reducer() -> None:
    """RuntimeError: torch.compile is set to reduce the gradients of DDP in Python.

    That reducer compiles the world size in, and divides by it before it sums: after a loss all gradients would be too small.
    """
    mode = getattr(sys.modules.get("torch._dynamo.config"), "optimize_ddp", None)
    if mode in _PYTHON_REDUCERS:
        raise RuntimeError(
            f"all_reduce: torch._dynamo.config.optimize_ddp is {mode!r}, which divides gradients by a world size that is "
            'compiled in; set it to "ddp_optimizer" or False, or make the group with pccl.distributed.Options(strict=True)'
        )
