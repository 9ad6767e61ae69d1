"""What members of a run of DiLoCo need alike beside its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pccl.diloco._outer import Outer, named_parameters
from pccl.diloco._state import State
from pccl.state._local.agreement import Terms, joined, layout_of, terms_of_model, terms_of_optimizers


def terms_of(
    model: nn.Module, inner: torch.optim.Optimizer, outers: Mapping[str, Outer], state: State, given: Mapping[str, Any]
) -> Terms:
    """Returns the terms of a member that has just been made; `outers` are by prefix, and `given` are its arguments.

    A joiner gets no numbers of the inner optimizer, so they are compared there, too: those that it was made with.
    """
    parameters = dict(named_parameters(model))
    names: dict[Any, str] = {parameter: name for name, parameter in parameters.items()}
    of_inner = terms_of_optimizers([inner], names, "inner optimizer")
    names |= {leaf: part.name for one in outers.values() for part, leaf in zip(one.parts, one.leaves, strict=False)}
    of_outer = terms_of_optimizers([one.optimizer for one in outers.values() if one.optimizer], names, "outer optimizer")
    shared = {f"fragment of {part.name}": prefix for prefix, one in outers.items() for part in one.parts if prefix}
    shared |= {f"state {name!r}": layout_of(one) for name, one in state._shared._tensors.items()}
    fixed = joined([Terms(given), terms_of_model(dict(model.named_modules()), parameters), of_inner]).fixed()
    return joined([fixed, Terms(shared), of_outer])
