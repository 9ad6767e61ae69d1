"""Network namespaces for a measurement; needs root. Their names are unique, and the end of the block removes them.

with Lab() as lab:
    places = lab.star(2)
    lab.limit(places[0], 1000)
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness import ROOT, BenchError, Fleet, Master, SkippedError, require_program

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
    exact: bool = False  # each packet arrives when it is due, not in ticks of up to 0.5 ms


Pair = tuple[int, int]
"""Two sites, the lower number first; of a long pair, (0, 1)."""


@contextmanager
def fleet_at(places: Sequence[Place], worker: Callable[..., Any], **arguments: Any) -> Iterator[Fleet]:
    """A worker at each place, which gets the `address` of a master at the first one."""
    home, namespaces = places[0], [place.namespace for place in places]
    with (
        Master(home.address, home.namespace) as master,
        Fleet(worker, len(places), namespaces=namespaces, address=master.address, **arguments) as fleet,
    ):
        yield fleet


class Lab:
    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise SkippedError("network namespaces need root: run this as root")
        require_program("ip")
        os.environ["PCCL_INSECURE"] = "1"  # no stranger reaches the namespaces
        self._mark = f"{os.getpid():x}{secrets.token_hex(2)}"
        self._namespaces: list[str] = []
        self._emulators: dict[Pair, subprocess.Popen[str]] = {}

    def long_pair(self, link: Link, seed: int = 1) -> tuple[Place, Place]:
        """Two namespaces joined by the emulator of a long link (bench/wan)."""
        one, two = (
            Place(namespace=self._namespace(side), device=f"t{self._mark}{side}", address=f"{NETWORK}.{index}")
            for index, side in enumerate("ab", start=1)
        )
        self._emulate((0, 1), link, one.device, two.device, seed)
        for place in (one, two):
            run(f"ip link set {place.device} netns {place.namespace}")
            self._address(place)
        return one, two

    def sites(self, sizes: Sequence[int], links: Link | Mapping[Pair, Link]) -> list[Place]:
        """Places in several sites: fast inside, and one emulated link between each two sites, all alike or each as it is
        given; site by site.
        """
        places = []
        for site, size in enumerate(sizes):
            router = self._namespace(f"r{site}")
            run(f"ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1")
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
                self._emulate((a, b), links if isinstance(links, Link) else links[a, b], ends[0][2], ends[1][2], seed=1)
                for here, there, device in ends:
                    router = f"pccl-{self._mark}-r{here}"
                    run(f"ip link set {device} netns {router}")
                    run(f"ip -n {router} link set {device} mtu 1500 txqueuelen 20000 up")
                    run(f"ip -n {router} route add 10.214.{there}.0/24 dev {device}")
        return places

    def change(self, link: Link, between: Pair = (0, 1)) -> None:
        """Gives an emulated link that rate and loss, both ways, while it runs; its delay and its queue stay."""
        emulated = self._emulators[between]
        assert emulated.stdin is not None
        for way in ("ab", "ba"):
            print(f"{way} {link.megabits} {link.loss}", file=emulated.stdin, flush=True)
            hear(emulated, "ok")

    def star(self, count: int) -> list[Place]:
        """Namespaces joined by a bridge, which lives in one more of them."""
        hub = self._namespace("hub")
        run(f"ip -n {hub} link add hub type bridge")
        run(f"ip -n {hub} link set hub up")
        places = []
        for index in range(count):
            namespace = self._namespace(str(index))
            place = Place(namespace=namespace, device=f"v{self._mark}{index}", address=f"{NETWORK}.{index + 1}")
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
        for way in run(f"ip -n {place.namespace} -4 route show").splitlines():
            run(f"ip -n {place.namespace} route replace {way} congctl {name}")

    def _emulate(self, between: Pair, link: Link, one: str, two: str, seed: int) -> None:
        """Makes two devices that the emulator joins."""
        command = [
            str(built("wan")),
            *("--rate-mbit", str(link.megabits), "--delay-us", str(int(link.delay_ms * 1e3)), "--loss", str(link.loss)),
            *("--queue-bytes", str(link.queue_bytes), "--seed", str(seed)),
            *(("--exact",) if link.exact else ()),
            *(one, two),
        ]
        emulated = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._emulators[between] = emulated
        hear(emulated, "ready")

    def _namespace(self, name: str) -> str:
        namespace = f"pccl-{self._mark}-{name}"
        run(f"ip netns add {namespace}")
        self._namespaces.append(namespace)
        run(f"ip -n {namespace} link set lo up")
        return namespace

    def _address(self, place: Place) -> None:
        run(f"ip -n {place.namespace} addr add {place.address}/24 dev {place.device}")
        run(f"ip -n {place.namespace} link set {place.device} mtu 1500 txqueuelen 20000 up")
        self.sysctl(place, "net.ipv4.tcp_no_metrics_save", "1")

    def close(self) -> None:
        """Removes everything."""
        while self._emulators:
            _, emulated = self._emulators.popitem()
            emulated.terminate()
            emulated.communicate()
        while self._namespaces:
            # A killed program's sockets may hold its namespace for a moment; the name goes at once.
            subprocess.run(["ip", "netns", "del", self._namespaces.pop()], check=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Switch(Lab):
    """Namespaces around the emulated switch of bench/switch, each with a line of 1 ms to and from it."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        program = built("switch", "command", "link", "packet", "queue")
        devices = [f"s{self._mark}{index}" for index in range(count)]
        command = [str(program), "--delay-us", "1000", "--queue-bytes", "500000", "--seed", str(seed), *devices]
        self._switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hear(self._switch, "ready")
        self.places = [self._join(index, device) for index, device in enumerate(devices)]

    def _join(self, index: int, device: str) -> Place:
        namespace = self._namespace(str(index))
        run(f"ip link set {device} netns {namespace}")
        place = Place(namespace=namespace, device=device, address=f"{NETWORK}.{index + 1}")
        self._address(place)
        return place

    def tell(self, command: str) -> None:
        """See bench/switch/switch.c."""
        assert self._switch.stdin is not None
        print(command, file=self._switch.stdin, flush=True)
        hear(self._switch, "ok")

    def close(self) -> None:
        self._switch.kill()
        self._switch.wait()
        super().close()

    def __enter__(self) -> Self:
        return self


def hear(emulated: subprocess.Popen[str], word: str) -> None:
    """Waits for the next line of an emulator, which has to be that."""
    assert emulated.stdout is not None
    if (line := emulated.stdout.readline().strip()) != word:
        raise BenchError(f"the emulator of a link said {line!r} in place of {word!r}")


def built(name: str, *shared: str) -> Path:
    """Returns an emulator of bench/`name`, built if it is missing or older than its sources; `shared` are units of bench/wan."""
    folder, wan = ROOT / "bench" / name, ROOT / "bench" / "wan"
    program = ROOT / "build" / "bench" / f"{name}-emulator"
    units = sorted({*folder.glob("*.c"), *(wan / f"{unit}.c" for unit in shared)})
    sources = [*units, *wan.glob("*.h")]
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        program.parent.mkdir(parents=True, exist_ok=True)
        run(f"cc -std=c11 -O2 -Wall -Wextra -pthread -I{wan} -o {program} {' '.join(map(str, units))} -lm")
    return program


def run(command: str) -> str:
    """What it printed."""
    words = shlex.split(command)
    require_program(words[0])
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"`{command}` failed: {done.stderr.strip()}")
    return done.stdout
