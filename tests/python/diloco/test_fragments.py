"""How a model is divided into fragments: each trained parameter is in exactly one."""

from __future__ import annotations

import itertools

import pytest
from torch import nn

from pccl.diloco._fragments import PATTERNS, fragments_of
from pccl.diloco._outer import trained_parameters


class Tower(nn.Module):
    """Blocks between an embedding and a head that shares its weight; a frozen block, and one that has a list inside."""

    def __init__(self, blocks: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(blocks))
        self.blocks[1].requires_grad_(False)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10)
        self.head.weight = self.embed.weight


class Compiled(nn.Module):
    """The model as torch.compile wraps it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def names_of(model: nn.Module, fragments, pattern: str = "strided") -> list[list[str]]:
    return [[name for name, _ in one] for one in fragments_of(model, fragments, pattern)]


def is_partition(model: nn.Module, found: list[list[str]]) -> bool:
    order = [name for name, _ in trained_parameters(model)]
    return sorted(itertools.chain(*found)) == sorted(order) and all(sorted(one, key=order.index) == one and one for one in found)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("count", range(1, 8))
def test_each_parameter_is_in_exactly_one_fragment(pattern, count):
    found = names_of(Tower(), count, pattern)
    assert len(found) == count
    assert is_partition(Tower(), found)
    assert not any(name.startswith("blocks.1.") or name == "head.weight" for one in found for name in one)
    for layer in range(5):  # whole layers
        assert sum(any(name.startswith(f"blocks.{layer}.") for name in one) for one in found) == (layer != 1)


def layers(found: list[list[str]]) -> list[list[int]]:
    return [sorted({int(name.split(".")[1]) for name in one if name.startswith("blocks.")}) for one in found]


def test_patterns():
    model = Tower(9)
    assert layers(names_of(model, 3, "strided")) == [[0, 4, 7], [2, 5, 8], [3, 6]]
    sequential = layers(names_of(model, 3, "sequential"))
    assert list(itertools.chain(*sequential)) == [0, 2, 3, 4, 5, 6, 7, 8]
    sizes = [sum(parameter.numel() for _, parameter in one) for one in fragments_of(model, 3, "balanced")]
    assert max(sizes) - min(sizes) <= 28  # a layer
    assert names_of(Compiled(model), 3) == names_of(model, 3)


def test_one_huge_layer_leaves_no_fragment_empty():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 900), nn.Linear(900, 2), nn.Linear(2, 2))
    for pattern in PATTERNS:
        for count in range(1, 5):
            assert is_partition(model, names_of(model, count, pattern)), (pattern, count)
    lone = nn.Linear(3, 3)
    assert names_of(lone, 1) == [["weight", "bias"]]


def test_by_names_and_modules():
    model = Tower(3)
    wanted = [
        ["embed.weight", "norm.weight", "norm.bias", "head.bias"],
        [f"blocks.{i}.{j}.{k}" for i in (0, 2) for j in (0, 1) for k in ("weight", "bias")],
    ]
    assert names_of(model, [["embed", "norm", "head"], ["blocks"]]) == wanted
    assert names_of(model, [[model.embed, model.norm, model.head], model.blocks]) == wanted
    assert names_of(Compiled(model), ["blocks", ["embed", model.norm, "head.bias"]]) == wanted[::-1]
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert names_of(layers, layers) == [["0.weight", "0.bias"], ["1.weight", "1.bias"]]
    shared = names_of(model, ["head", ["embed", "norm"], "blocks"])
    assert shared[0] == ["embed.weight", "head.bias"]  # what is shared belongs to the first


@pytest.mark.parametrize(
    ("fragments", "pattern", "text"),
    [
        (0, "strided", "fragments must be from 1 to 5"),
        (6, "balanced", "fragments must be from 1 to 5"),
        (2, "random", "pattern 'random' is not one of"),
        (["embed", "norm"], "strided", "parameter blocks.0.0.weight is in no fragment"),
        (["embed", "blocks", "norm", "head", "blocks.2"], "strided", "parameter blocks.2.0.weight is in the fragments 1 and 4"),
        (["embed", "blocks", "norm", "head", "tail"], "strided", "fragment 4: 'tail' has no parameter"),
        (["blocks.1", "embed"], "strided", "fragment 0: 'blocks.1' has no parameter"),
        (["embed", "head.weight", "head", "norm", "blocks"], "strided", "fragment 1 has no parameter of its own"),
    ],
)
def test_what_is_wrong_is_told(fragments, pattern, text):
    with pytest.raises(ValueError, match=text):
        fragments_of(Tower(3), fragments, pattern)
    with pytest.raises(TypeError, match="a fragment has names and modules, not int"):
        fragments_of(Tower(3), [[1]])
