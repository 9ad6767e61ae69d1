"""Network namespaces of a test, which stand for hosts: made, entered, removed, and peers and a master in them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from actors import Actor
from performers import enter_network

from pccl import MasterNode

Result = TypeVar("Result")


def run(command: str) -> None:
    subprocess.run(shlex.split(command), check=True, capture_output=True)


def inside(namespace: str, act: Callable[[], Result]) -> Result:
    """What `act` returns in a thread of its own, which alone enters the namespace; threads that it starts are born there."""

    def enter() -> Result:
        enter_network(namespace)
        return act()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter).result()


class Namespaces:
    """Namespaces with names of their own, and one more, `hub`, which joins them."""

    def __init__(self) -> None:
        self._mark = f"{os.getpid():x}{secrets.token_hex(2)}"
        self._undo = contextlib.ExitStack()
        try:
            self.hub = self.make("hub")
            self.lay_out()
        except BaseException:
            self.close()
            raise

    def lay_out(self) -> None:
        """Makes the network of the hub."""
        raise NotImplementedError

    def make(self, name: str) -> str:
        full = f"pccl-{self._mark}-{name}"
        run(f"ip netns add {full}")
        self._undo.callback(subprocess.run, ["ip", "netns", "del", full], check=False)
        run(f"ip -n {full} link set lo up")
        return full

    def close(self) -> None:
        self._undo.close()


Network = TypeVar("Network", bound=Namespaces)


@contextlib.contextmanager
def laid_out(kind: Callable[[], Network]) -> Iterator[Network]:
    """A network, for a test that is skipped where none can be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        network = kind()
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    with contextlib.closing(network):
        yield network


@contextlib.contextmanager
def master_in(namespace: str, heartbeat_limit: float, address: str = "0.0.0.0") -> Iterator[MasterNode]:
    """A master that listens in a namespace."""
    with contextlib.closing(MasterNode(f"{address}:0", heartbeat_limit=heartbeat_limit, insecure=True)) as master:
        inside(namespace, master.run)
        yield master


def join(
    undo: contextlib.ExitStack, address: str, places: list[str], *, stderr: Path | None = None, **environment: str
) -> list[Actor]:
    """Accepted peers in these namespaces, which join in this order the run at this address."""
    actors = []
    for number, place in enumerate(places):
        actor = Actor(address, number, environment={"NETNS": place, "PCCL_INSECURE": "1", **environment}, stderr=stderr)
        undo.callback(actor.kill)
        actors.append(actor)
    for actor in actors:
        actor.tell("join", len(places))
    assert [actor.answer() for actor in actors] == [None] * len(places)
    return actors
