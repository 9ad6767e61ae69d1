"""How a model is divided into fragments, of which each is averaged at a time of its own."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from pccl.diloco._outer import trained_parameters
from pccl.state._entries import COMPILED

PATTERNS = ("strided", "sequential", "balanced")

Named = tuple[str, Tensor]
Chosen = str | nn.Module
Fragments = int | Sequence[Chosen | Sequence[Chosen]]


def fragments_of(model: nn.Module, fragments: Fragments, pattern: str = "strided") -> list[list[Named]]:
    """The trained parameters of each fragment by name, in the order of the model: each of them in exactly one.

    `fragments` is a number, and `pattern` tells how whole layers are dealt out (`layers_of`), or it has, for each fragment, names
    of modules and parameters, or modules: one or several. A parameter that several modules share belongs to the first fragment
    that one of them is in. ValueError: a trained parameter is in none or in several, a fragment has none, or there are more
    fragments than layers.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"pattern {pattern!r} is not one of {', '.join(map(repr, PATTERNS))}")
    if isinstance(fragments, numbers.Integral):
        return _dealt(model, int(fragments), pattern)
    if isinstance(fragments, nn.ModuleList | nn.Sequential):
        fragments = list(fragments)
    if isinstance(fragments, str) or not isinstance(fragments, Sequence):
        raise TypeError(f"fragments must be a number, or a list of names and modules of each fragment, not {fragments!r}")
    return _chosen(model, fragments)


def layers_of(model: nn.Module) -> tuple[list[list[Named]], list[list[Named]]]:
    """The layers of a model, and the modules beside them, such as an embedding; only those with trained parameters.

    The layers are the children of the list of modules (nn.ModuleList, nn.Sequential) that has the most trained parameters, outer
    before inner ones. Beside them, each module with parameters of its own counts as one.
    """
    trained = trained_parameters(model)
    best, most = "", 0
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
            size = _size([one for one in trained if _is_in(one[0], _plain(name))])
            if size > most:
                best, most = _plain(name), size
    layers: dict[str, list[Named]] = {}
    others: dict[str, list[Named]] = {}
    for name, parameter in trained:
        if most and _is_in(name, best):
            child = name[len(best) :].lstrip(".").split(".")[0]
            layers.setdefault(child, []).append((name, parameter))
        else:
            others.setdefault(name.rpartition(".")[0], []).append((name, parameter))
    return list(layers.values()), list(others.values())


def _dealt(model: nn.Module, count: int, pattern: str) -> list[list[Named]]:
    layers, others = layers_of(model)
    if not 1 <= count <= len(layers) + len(others):
        text = f"fragments must be from 1 to {len(layers) + len(others)}, the layers of this model, not {count}"
        raise ValueError(f"{text}: or pass the names of the parameters of each fragment")
    order = {name: at for at, (name, _) in enumerate(trained_parameters(model))}
    units = sorted(layers + others, key=lambda unit: order[unit[0][0]])
    found: list[list[Named]] = [[] for _ in range(count)]
    rest = units
    if pattern == "sequential":
        for unit, at in zip(units, _runs([_size(unit) for unit in units], count), strict=True):
            found[at] += unit
        return found
    if pattern == "strided":
        for at, layer in enumerate(layers):
            found[at % count] += layer
        rest = others
    for unit in sorted(rest, key=_size, reverse=True):  # the largest first, each to the smallest fragment so far
        min(found, key=lambda fragment: (bool(fragment), _size(fragment))).extend(unit)
    return [sorted(fragment, key=lambda one: order[one[0]]) for fragment in found]


def _runs(sizes: list[int], count: int) -> Iterable[int]:
    """For each unit the fragment that it belongs to: runs of about the same size, none of them empty."""
    total, done, at = sum(sizes), 0, -1
    for index, size in enumerate(sizes):
        wanted = int((done + size / 2) * count / max(1, total))
        at = max(min(wanted, at + 1, count - 1), at, 0, count - (len(sizes) - index))
        done += size
        yield at


def _chosen(model: nn.Module, fragments: Sequence[Chosen | Sequence[Chosen]]) -> list[list[Named]]:
    trained = {id(parameter): (name, parameter) for name, parameter in trained_parameters(model)}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in trained:
            names.setdefault(id(parameter), []).append(_plain(name))
    holder: dict[int, int] = {}
    for at, given in enumerate(fragments):
        for one in [given] if isinstance(given, str | nn.Module) else given:
            if isinstance(one, nn.Module):
                keys = [id(parameter) for parameter in one.parameters() if id(parameter) in trained]
            elif isinstance(one, str):
                keys = [key for key, known in names.items() if any(_is_in(name, _plain(one)) for name in known)]
            else:
                raise TypeError(f"a fragment has names and modules, not {type(one).__name__}")
            if not keys:
                what = repr(one) if isinstance(one, str) else type(one).__name__
                raise ValueError(f"fragment {at}: {what} has no parameter of the model that requires a gradient")
            for key in keys:
                if holder.setdefault(key, at) != at and len(names[key]) == 1:
                    raise ValueError(f"parameter {trained[key][0]} is in the fragments {holder[key]} and {at}")
    missing = [name for key, (name, _) in trained.items() if key not in holder]
    if missing:
        raise ValueError(f"parameter {missing[0]} is in no fragment ({len(missing)} such parameters)")
    found: list[list[Named]] = [[] for _ in fragments]
    for key, named in trained.items():
        found[holder[key]].append(named)
    for at, fragment in enumerate(found):
        if not fragment:
            raise ValueError(f"fragment {at} has no parameter of its own")
    return found


def _plain(name: str) -> str:
    return f"{name}.".replace(COMPILED, "").removesuffix(".")


def _is_in(name: str, module: str) -> bool:
    return not module or name == module or name.startswith(f"{module}.")


def _size(parameters: Iterable[Named]) -> int:
    return sum(parameter.numel() for _, parameter in parameters)
