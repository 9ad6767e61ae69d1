"""What members need alike to train together: a digest of it, and the error that names the first difference.

A meeting, at the beginning of a run or with newcomers, compares the digests of its Terms in an exchange that it makes anyway.
Only if they differ do the members tell each other the terms themselves.

**Each member's own**, and so in no terms: the contents of parameters, buffers and values; the shapes of buffers; the prefix of
`torch.compile` in names, and wrappers of optimizers; devices, data loaders and their workers; paths, names of peers and timeouts;
when a process leaves; with how many peers a run of DiLoCo begins. A value that is None somewhere may be anything elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pccl._core.errors import Result, UsageError
from pccl.state._local.objects import COMPILED, has_state, stateful
from pccl.state._local.tree import decode, encode

_log = logging.getLogger("pccl.state")

SHOWN = 200
"""Characters of a text in an error."""

_SMALL = 64
"""Elements; the content of a larger tensor is no number of a group."""

_DEPTH = 16
"""Of lists and dicts in a value; what is deeper is compared by its class."""

_NAMES = "param_names"
"""What torch calls parameters in a group: with the prefix of a compiled or a wrapped model."""

_MISSING = "missing"

_NUMBER, _MAPPING = (int, float, numbers.Real), (dict, Mapping)
"""The usual classes first: an abstract one that is asked for the first time takes its time, and the first sync waits for it."""


class Each(dict[Any, Any]):
    """Texts, types, or what is yes or no, of many terms, whose common name has "{}" where a key of this one goes."""


class Terms(NamedTuple):
    """What has to be equal, by name. Values are text, what `text_of` makes one of, or Each of these."""

    always: Mapping[str, Any]
    """Also at a newcomer: the structure, and settings."""
    at_start: Mapping[str, Any] = MappingProxyType({})
    """Only where a run begins: members may have changed these numbers since, and a newcomer takes theirs."""

    def fixed(self) -> Terms:
        """The terms as they are now, which are to be equal always."""
        return Terms(texts_of({**self.always, **self.at_start}))

    def digests(self) -> tuple[int, int]:
        """Numbers of 62 bits that differ where the terms differ."""
        return _digest(self.always), _digest(self.at_start)


class TermsError(UsageError, ValueError, RuntimeError):
    """Members differ in what they need alike. Programs catch it as what each class raised for its own arguments before."""


def require_alike(
    what: str,
    own: Terms,
    rows: Sequence[Sequence[int]],
    tell: Callable[[bytes], Sequence[bytes]],
    who: str,
    at: int,
    *,
    known: Sequence[int] = (),
    fresh: bool = True,
) -> bool:
    """Raises TermsError if members differ in their terms: on all alike where a run begins, and later at those who differ alone.

    Returns whether others are refused, which a warning names. `rows` are the digests that members have told, `known` the places
    of those who are in a run that goes on. `fresh`: nobody has a state that the others take, so that terms `at_start` count.
    `tell` gives what each member tells, in the order of `rows`. All members call it, and only if digests differ. This one has the
    place `at`, and is called `who`.
    """
    count = 2 if fresh else 1
    if len({tuple(row[:count]) for row in rows}) == 1:
        return False
    kinds = own._fields[:count]
    content = encode({"who": who} | {kind: texts_of(terms) for kind, terms in own._asdict().items()})
    told = [decode(one, numbers_and_text=True) for one in tell(bytes(content))]
    names = [str(one["who"])[:SHOWN] for one in told]
    first = min(known, default=0)
    refused = False
    for place, terms in enumerate(told):
        found = next(filter(None, (difference(told[first][kind], terms[kind]) for kind in kinds)), None)
        if found is None:
            continue
        text = f"{found[0]} is {found[1]} at {names[first]} and {found[2]} at {names[place]}; give the same to all"
        if not known or place == at:
            raise TermsError(Result.INVALID_USAGE, what, text)
        _log.warning("%s", f"{what}: {names[place]} is refused: {text}")
        refused = True
    return refused


def texts_of(terms: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in terms.items():
        each = {name.replace("{}", key): one for key, one in value.items()} if isinstance(value, Each) else {name: value}
        found |= {key: text_of(one) for key, one in each.items()}
    return found


def _digest(terms: Mapping[str, Any]) -> int:
    text = "\n".join([f"{name}={value if isinstance(value, Each) else text_of(value)}" for name, value in terms.items()])
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()) >> 2


def difference(own: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The first name whose text differs, and both texts. None stands for whatever another member has."""
    free = tuple(name for name, text in (*own.items(), *other.items()) if text == "None" and name.startswith("value "))
    for name in (*own, *(one for one in other if one not in own)):
        texts = own.get(name, _MISSING), other.get(name, _MISSING)
        if texts[0] != texts[1] and not name.startswith(free):
            return name[:SHOWN], texts[0][:SHOWN], texts[1][:SHOWN]
    pairs = enumerate(zip((one for one in own if one in other), (one for one in other if one in own), strict=True))
    return next(((f"entry {place}", one[:SHOWN], two[:SHOWN]) for place, (one, two) in pairs if one != two), None)


def text_of(value: Any) -> str:
    """The same text for equal numbers of whatever type, also in lists and dicts; the class of what has no plain value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | torch.dtype):
        return str(value)
    if isinstance(value, _NUMBER):
        number = float(value)
        return str(int(number)) if abs(number) < 1 << 53 and number.is_integer() else repr(number)
    if isinstance(value, Tensor):
        plain = value.numel() <= _SMALL and not value.is_meta and not hasattr(value, "full_tensor")
        return text_of(value.tolist()) if plain else layout_of(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(text_of, value))})"
    if value is not None and isinstance(value, _MAPPING):
        return f"{{{', '.join(f'{key}: {text_of(one)}' for key, one in value.items())}}}"
    return kind_of(value)


def kind_of(value: Any) -> str:
    """The class of a value by its name, without the module of the program itself; "None" for None."""
    kind = type(value)
    if kind.__module__ in ("builtins", "__main__", "__mp_main__"):
        return "None" if value is None else kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def layout_of(tensor: Any) -> str:
    """The type and shape of a tensor or an array."""
    return _layout(tensor.dtype, tensor.shape)


@functools.lru_cache(maxsize=1024)
def _layout(dtype: Any, shape: Sequence[int]) -> str:
    return f"{dtype} of shape {tuple(shape)}"


def tensors_of(modules: Mapping[str, nn.Module], kind: str) -> dict[str, Any]:
    """What `named_parameters` and `named_buffers` give, of modules that were found once. `kind`: "_parameters" or "_buffers"."""
    found: dict[Any, str] = {}
    for prefix, module in modules.items():
        for key, one in getattr(module, kind).items():
            if one is not None:
                found.setdefault(one, f"{prefix}.{key}".removeprefix(".").replace(COMPILED, ""))
    return {name: one for one, name in found.items()}


def terms_of_model(modules: Mapping[str, nn.Module], parameters: Mapping[str, Tensor]) -> Terms:
    """Parameters and buffers by name, and modules with an extra state.

    At the beginning also which parameters are trained, and how they are sharded.
    """
    always: dict[str, Any] = {"parameter {}": Each((name, layout_of(one)) for name, one in parameters.items())}
    always["buffer {}"] = Each((name, one.dtype) for name, one in tensors_of(modules, "_buffers").items())
    always["extra state of {}"] = Each((name.replace(COMPILED, ""), "there") for name in stateful(modules))
    trained = Each((name, one.requires_grad) for name, one in parameters.items())
    placed: Iterable[Any] = (
        one for one in parameters.items() if type(one[1]) is not nn.Parameter and hasattr(one[1], "placements")
    )
    placements = Each((name, str(one.placements)) for name, one in placed)
    return Terms(always, {"requires_grad of {}": trained, "placements of {}": placements})


def terms_of_optimizers(optimizers: Sequence[Any], names: Mapping[Any, str], kind: str = "optimizer") -> Terms:
    """Classes, groups, and the numbers of groups; `names` are those of the parameters."""
    always: dict[str, Any] = {f"number of {kind}s": len(optimizers)}
    at_start: dict[str, Any] = {}
    for number, one in enumerate(optimizers):
        inner = getattr(one, "optimizer", one)  # of a wrapper, such as accelerate's
        inner = inner if isinstance(inner, Optimizer) else one
        always[f"class of {kind} {number}"] = kind_of(inner)
        always[f"number of param groups of {kind} {number}"] = len(inner.param_groups)
        for place, group in enumerate(inner.param_groups):
            of = f"param group {place} of {kind} {number}"
            always[f"number of parameters of {of}"] = len(group["params"])
            placed = ((str(at), names.get(one) or layout_of(one)) for at, one in enumerate(group["params"]))
            always[f"parameter {{}} of {of}"] = Each(placed)
            at_start |= {f"{key} of {of}": value for key, value in sorted(group.items()) if key not in ("params", _NAMES)}
    return Terms(always, at_start)


def terms_of_values(values: Mapping[str, Any]) -> Terms:
    """Names of values, classes of objects with a state, and what a sampler deals out.

    At the beginning also types, keys, lengths, shapes of tensors, and the numbers of schedulers.
    """
    always: dict[str, Any] = {}
    at_start: dict[str, Any] = {}
    for name, value in sorted(values.items()):
        label = f"value {name!r}"
        always[label] = kind_of(value) if has_state(value) else "a plain value"
        if hasattr(value, "_terms"):
            always |= {f"{key} of {label}": one for key, one in value._terms().items()}
        elif isinstance(value, LRScheduler):
            at_start |= {f"{key} of {label}": one for key, one in value.state_dict().items()}
        elif isinstance(value, nn.Module):
            at_start |= _outline(label, {name.replace(COMPILED, ""): one for name, one in value.named_parameters()})
        elif not has_state(value):
            at_start |= _outline(label, value)
    return Terms(always, at_start)


def _outline(label: str, value: Any, depth: int = 0) -> dict[str, str]:
    """What a plain value consists of, without numbers and text. `label` is its name."""
    if hasattr(value, "dtype") and bool(value.shape):
        return {label: layout_of(value)}
    if isinstance(value, _NUMBER):
        return {label: "a number"}
    if not isinstance(value, (list, tuple, *_MAPPING)) or depth == _DEPTH:
        return {label: kind_of(value)}
    found = {label: kind_of(value) if isinstance(value, _MAPPING) else f"{kind_of(value)} of length {len(value)}"}
    listed = ((at, one) for at, one in enumerate(value) if not isinstance(one, _NUMBER))
    for key, one in sorted(value.items(), key=lambda item: repr(item[0])) if isinstance(value, _MAPPING) else listed:
        found |= _outline(f"{label}[{key!r}]", one, depth + 1)
    return found


def joined(parts: Iterable[Terms]) -> Terms:
    """All terms of several parts; of two with one name the last."""
    found: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for always, at_start in parts:
        found[0].update(always)
        found[1].update(at_start)
    return Terms(*found)
