"""Members who read the same data, or different data, by mistake: an error on all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from peers import on_all, team

from pccl import Communicator
from pccl.data import ElasticSampler, ElasticShards

SIZE = 61


def made(kind: str, comm: Communicator, **settings: Any) -> Any:
    if kind == "stream":
        names = settings.pop("names", "abcdef")
        return ElasticShards(names, lambda name: iter([name] * 5), 2, collate=list, communicator=comm, **settings)
    return ElasticSampler(range(settings.pop("size", SIZE)), communicator=comm, **settings)


def drawn(source: Any) -> Any:
    return next(source.batches()) if isinstance(source, ElasticShards) else next(iter(source))


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(RuntimeError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("kind", ["samples", "stream"])
def test_a_commit_among_members_who_have_not_synced_is_refused(kind):
    with team([0, 0]) as comms:
        sources = on_all(comms, lambda comm, _: made(kind, comm))
        assert drawn(sources[0]) == drawn(sources[1])
        told = on_all(sources, lambda source, _: refused(source.commit))
        assert all("call sync() first, on all members" in one for one in told), told
        assert sources[0].remaining == (6 if kind == "stream" else SIZE)
        on_all(sources, lambda source, _: source.sync())
        on_all(sources, lambda source, _: drawn(source))
        assert on_all(sources, lambda source, _: source.commit()) == [False, False]


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        ("samples", "size", (SIZE, SIZE + 1)),
        ("samples", "seed", (0, 1)),
        ("samples", "shuffle", (True, False)),
        ("samples", "drop_last", (True, False)),
        ("samples", "global_batch_size", (None, 8)),
        ("stream", "names", ("abcdef", "badcfe")),
        ("stream", "seed", (0, 1)),
        ("stream", "shuffle", (True, False)),
    ],
)
def test_settings_that_differ_between_members_are_refused(kind, name, values):
    word = {"size": "number of samples", "names": "name of shard 0"}.get(name, name)
    with team([0, 0]) as comms:
        different = on_all(comms, lambda comm, rank: made(kind, comm, **{name: values[rank]}))
        told = on_all(different, lambda source, _: refused(source.sync))
        text = re.compile(f"{word} is .* at rank 0 .* and .* at rank 1 .*; give the same to all")
        assert all(text.search(one) for one in told), told


@pytest.mark.parametrize("kind", ["samples", "stream"])
def test_settings_that_differ_are_refused_at_a_commit_too(kind):
    with team([0, 0]) as comms:
        sources = on_all(comms, lambda comm, rank: made(kind, comm))
        on_all(sources, lambda source, _: source.sync())
        others = on_all(comms, lambda comm, rank: made(kind, comm, seed=rank))
        for source, other in zip(sources, others, strict=True):  # a process group knows its members without a sync
            part = "_progress" if kind == "stream" else "_ledger"
            setattr(other, part, getattr(source, part))
            other._place = source._place
        told = on_all(others, lambda source, _: refused(source.commit))
        assert all("seed" in one for one in told), told
