"""Network namespaces for a measurement; needs root. Their names are unique, and the end of the block removes them.

with Lab() as lab:            one  10.213.0.1/24 ---- veth, tbf ---- 10.213.0.2/24  two
    one, two = lab.pair()
    lab.limit(one, 1000)
    lab.limit(two, 1000)
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness import ROOT, BenchError

NETWORK = "10.213.0"
TBF_BURST_BYTES = 128 * 1024
TBF_LATENCY_MS = 50


@dataclass(frozen=True, kw_only=True)
class Place:
    """A namespace with one device that leads to the other one."""

    namespace: str
    device: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Link:
    """What the emulated link is like, each way."""

    megabits: float  # 0 = as fast as this machine can
    delay_ms: float  # one way
    loss: float = 0.0  # probability per packet of at most one MTU
    queue_bytes: int = 0  # 0 = one bandwidth-delay product of the round trip


class Lab:
    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise BenchError("network namespaces need root: run this as root")
        self._mark = f"{os.getpid():x}{secrets.token_hex(2)}"
        self._namespaces: list[str] = []
        self._emulators: list[subprocess.Popen[str]] = []

    def pair(self) -> tuple[Place, Place]:
        """Two namespaces joined by a veth pair."""
        one, two = self._places("v")
        run(f"ip -n {one.namespace} link add {one.device} type veth peer name {two.device} netns {two.namespace}")
        for place in (one, two):
            self._address(place)
        return one, two

    def long_pair(self, link: Link, seed: int = 1) -> tuple[Place, Place]:
        """Two namespaces joined by the emulator of a long link (bench/wan)."""
        one, two = self._places("t")
        self._emulate(link, one.device, two.device, seed)
        for place in (one, two):
            run(f"ip link set {place.device} netns {place.namespace}")
            self._address(place)
        return one, two

    def sites(self, sizes: Sequence[int], link: Link) -> list[Place]:
        """Places in several sites: fast inside, and one emulated link between each two sites; site by site."""
        places = []
        for site, size in enumerate(sizes):
            router = self._namespace(f"r{site}")
            self.forward(router)
            run(f"ip -n {router} link add hub type bridge")
            run(f"ip -n {router} addr add 10.214.{site}.1/24 dev hub")
            run(f"ip -n {router} link set hub up")
            for index in range(size):
                place = Place(
                    namespace=self._namespace(f"{site}-{index}"),
                    device=f"v{self._mark}{site}{index}",
                    address=f"10.214.{site}.{index + 2}",
                )
                run(f"ip -n {place.namespace} link add {place.device} type veth peer name p{index} netns {router}")
                run(f"ip -n {router} link set p{index} master hub up")
                self._address(place)
                run(f"ip -n {place.namespace} route add default via 10.214.{site}.1")
                places.append(place)
        for a in range(len(sizes)):
            for b in range(a + 1, len(sizes)):
                ends = [(a, b, f"t{self._mark}{a}{b}"), (b, a, f"t{self._mark}{b}{a}")]
                self._emulate(link, ends[0][2], ends[1][2], seed=1)
                for here, there, device in ends:
                    router = f"pccl-{self._mark}-r{here}"
                    run(f"ip link set {device} netns {router}")
                    run(f"ip -n {router} link set {device} mtu 1500 txqueuelen 20000 up")
                    run(f"ip -n {router} route add 10.214.{there}.0/24 dev {device}")
        return places

    def forward(self, namespace: str) -> None:
        run(f"ip netns exec {namespace} sysctl -qw net.ipv4.ip_forward=1")

    def star(self, count: int) -> list[Place]:
        """Namespaces joined by a bridge, which lives in one more of them."""
        hub = f"pccl-{self._mark}-hub"
        run(f"ip netns add {hub}")
        self._namespaces.append(hub)
        run(f"ip -n {hub} link add hub type bridge")
        run(f"ip -n {hub} link set hub up")
        places = []
        for index in range(count):
            place = Place(
                namespace=f"pccl-{self._mark}-{index}", device=f"v{self._mark}{index}", address=f"{NETWORK}.{index + 1}"
            )
            run(f"ip netns add {place.namespace}")
            self._namespaces.append(place.namespace)
            run(f"ip -n {place.namespace} link set lo up")
            run(f"ip -n {place.namespace} link add {place.device} type veth peer name p{index} netns {hub}")
            run(f"ip -n {hub} link set p{index} master hub up")
            self._address(place)
            places.append(place)
        return places

    def limit(self, place: Place, megabits: float) -> None:
        """What leaves this place is limited to that rate."""
        shape = f"tbf rate {megabits}mbit burst {TBF_BURST_BYTES} latency {TBF_LATENCY_MS}ms"
        run(f"ip netns exec {place.namespace} tc qdisc add dev {place.device} root {shape}")

    def sysctl(self, place: Place, key: str, value: str) -> None:
        run(f"ip netns exec {place.namespace} sysctl -qw '{key}={value}'")

    def congestion(self, place: Place, name: str) -> None:
        """Connections from this place have that congestion control, as if it were the system's choice."""
        way = f"{NETWORK}.0/24 dev {place.device} scope link src {place.address}"
        run(f"ip -n {place.namespace} route replace {way} congctl {name}")

    def _emulate(self, link: Link, one: str, two: str, seed: int) -> None:
        """Makes two devices that the emulator joins."""
        command = [
            str(emulator()),
            *("--rate-mbit", str(link.megabits), "--delay-us", str(int(link.delay_ms * 1e3)), "--loss", str(link.loss)),
            *("--queue-bytes", str(link.queue_bytes), "--seed", str(seed), one, two),
        ]
        emulated = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._emulators.append(emulated)
        assert emulated.stdout is not None
        if emulated.stdout.readline() != "ready\n":
            raise BenchError("the link emulator did not start; its words stand above")

    def _namespace(self, name: str) -> str:
        namespace = f"pccl-{self._mark}-{name}"
        run(f"ip netns add {namespace}")
        self._namespaces.append(namespace)
        run(f"ip -n {namespace} link set lo up")
        return namespace

    def _places(self, kind: str) -> tuple[Place, Place]:
        made = []
        for index, side in enumerate("ab"):
            namespace = f"pccl-{self._mark}-{side}"
            run(f"ip netns add {namespace}")
            self._namespaces.append(namespace)
            run(f"ip -n {namespace} link set lo up")
            made.append(Place(namespace=namespace, device=f"{kind}{self._mark}{side}", address=f"{NETWORK}.{index + 1}"))
        return made[0], made[1]

    def _address(self, place: Place) -> None:
        run(f"ip -n {place.namespace} addr add {place.address}/24 dev {place.device}")
        run(f"ip -n {place.namespace} link set {place.device} mtu 1500 txqueuelen 20000 up")
        self.sysctl(place, "net.ipv4.tcp_no_metrics_save", "1")

    def close(self) -> str:
        """Removes everything; gives what the emulator counted."""
        counted = ""
        while self._emulators:
            emulated = self._emulators.pop()
            emulated.terminate()
            counted += emulated.communicate()[0]
        while self._namespaces:
            # A killed program's sockets may hold its namespace for a moment; the name goes at once.
            subprocess.run(["ip", "netns", "del", self._namespaces.pop()], check=False)
        return counted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def emulator() -> Path:
    """The emulator, built when it is not there or older than its source."""
    folder = ROOT / "bench" / "wan"
    program = ROOT / "build" / "bench" / "longlink"
    sources = sorted(folder.glob("*.[ch]"))
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        program.parent.mkdir(parents=True, exist_ok=True)
        units = " ".join(str(source) for source in sources if source.suffix == ".c")
        run(f"cc -std=c11 -O2 -Wall -Wextra -pthread -o {program} {units} -lm")
    return program


def run(command: str) -> None:
    done = subprocess.run(shlex.split(command), capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"`{command}` failed: {done.stderr.strip()}")
