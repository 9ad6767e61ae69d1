"""Peers behind a translator of addresses (NAT), which nobody can dial."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Ops, Reduce, all_follow, check_agreement, contributors, losses
from namespaces import Namespaces, inside, join, laid_out, master_in, run
from performers import PATIENCE
from relays import relay_at

from pccl import MasterNode

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LIMIT = 1.0
STEPS = [Ops("plain", (Reduce(10), Reduce(100_000)))] * 3
TCP = 6
FIRST_PORT = 20000


def open_tun(name: str) -> int:
    opened = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(opened, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return opened


def checksum(data: bytes) -> bytes:
    if len(data) % 2:
        data += b"\0"
    return (0xFFFF - int.from_bytes(data, "big") % 0xFFFF).to_bytes(2, "big")


class Translator:
    """Lets TCP connections of one host out under a public address, and nothing in that does not belong to one of them."""

    def __init__(self, inside: int, outside: int, public: bytes) -> None:
        self._inside, self._outside, self._public = inside, outside, public
        self._ports: dict[bytes, int] = {}
        self._hosts: dict[int, bytes] = {}
        self._known: set[tuple[int, bytes]] = set()
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stops.set()
        self._thread.join()
        os.close(self._inside)
        os.close(self._outside)

    def _carry(self) -> None:
        while not self._stops.is_set():
            for opened in select.select([self._inside, self._outside], [], [], 0.05)[0]:
                packet = bytearray(os.read(opened, 1 << 16))
                if packet[0] >> 4 != 4 or packet[9] != TCP:
                    continue
                length = (packet[0] & 15) * 4
                if opened == self._inside:
                    self._go_out(packet, length)
                else:
                    self._come_in(packet, length)

    def _go_out(self, packet: bytearray, length: int) -> None:
        host = bytes(packet[12:16] + packet[length : length + 2])
        port = self._ports.setdefault(host, FIRST_PORT + len(self._ports))
        self._hosts[port] = host
        self._known.add((port, bytes(packet[16:20] + packet[length + 2 : length + 4])))
        packet[12:16] = self._public
        packet[length : length + 2] = port.to_bytes(2, "big")
        self._send(self._outside, packet, length)

    def _come_in(self, packet: bytearray, length: int) -> None:
        port = int.from_bytes(packet[length + 2 : length + 4], "big")
        if (port, bytes(packet[12:16] + packet[length : length + 2])) not in self._known:
            return
        host = self._hosts[port]
        packet[16:20] = host[:4]
        packet[length + 2 : length + 4] = host[4:]
        self._send(self._inside, packet, length)

    def _send(self, opened: int, packet: bytearray, length: int) -> None:
        packet[10:12] = b"\0\0"
        packet[10:12] = checksum(bytes(packet[:length]))
        packet[length + 16 : length + 18] = b"\0\0"
        pseudo = packet[12:20] + bytes([0, TCP]) + (len(packet) - length).to_bytes(2, "big")
        packet[length + 16 : length + 18] = checksum(bytes(pseudo + packet[length:]))
        os.write(opened, packet)


class Internet(Namespaces):
    """A namespace with public addresses, hosts on it, and hosts behind translators of their own."""

    address = "10.214.0.1"

    def lay_out(self) -> None:
        self._count = 0
        inside(self.hub, lambda: run("sysctl -qw net.ipv4.ip_forward=1"))
        run(f"ip -n {self.hub} addr add {self.address}/32 dev lo")
        os.close(inside(self.hub, lambda: open_tun("probe")))

    def host(self) -> str:
        """A host with a public address."""
        name, address = self._next()
        run(f"ip -n {name} link add eth type veth peer name p{self._count} netns {self.hub}")
        run(f"ip -n {name} addr add {address}/32 dev eth")
        run(f"ip -n {name} link set eth up")
        run(f"ip -n {self.hub} link set p{self._count} up")
        run(f"ip -n {self.hub} route add {address}/32 dev p{self._count}")
        run(f"ip -n {name} route add default via {self.address} dev eth onlink src {address}")
        return name

    def hidden_host(self, walled: bool = False) -> str:
        """A host that has a private address, and a public one for connections that it makes."""
        name, address = self._next()
        ends = inside(name, lambda: open_tun("nat")), inside(self.hub, lambda: open_tun(f"n{self._count}"))
        own = address if walled else "192.168.7.2"
        run(f"ip -n {name} addr add {own}/32 dev nat")
        run(f"ip -n {name} link set nat mtu 1500 up")
        run(f"ip -n {name} route add default dev nat src {own}")
        run(f"ip -n {self.hub} link set n{self._count} mtu 1500 up")
        run(f"ip -n {self.hub} route add {address}/32 dev n{self._count}")
        translator = Translator(*ends, bytes(map(int, address.split("."))))
        self._undo.callback(translator.close)
        return name

    def walled_host(self) -> str:
        """A host with a public address, whose firewall lets nothing in that it has not asked for."""
        return self.hidden_host(walled=True)

    def _next(self) -> tuple[str, str]:
        self._count += 1
        return self.make(str(self._count)), f"203.0.113.{self._count}"


@pytest.fixture
def internet() -> Iterator[tuple[Internet, MasterNode]]:
    with laid_out(Internet) as network, master_in(network.hub, LIMIT) as master:
        yield network, master


@pytest.mark.plain("the namespaces have networks of their own, which need no keys here")
def test_one_that_nobody_can_dial(internet):
    """It dials all others, whoever joined first: newcomers that come one by one, and all at once."""
    network, master = internet
    with contextlib.ExitStack() as undo:
        places = [network.hidden_host(), network.host(), network.host()]
        actors = join(undo, f"{network.address}:{master.port}", places)
        logs = all_follow(actors, STEPS)
        check_agreement(logs)
        assert losses(logs[0]) == []
        assert contributors(logs[0])[-1] == 7


@pytest.mark.plain("the namespaces have networks of their own, which need no keys here")
def test_two_that_nobody_can_dial_meet_at_a_relay(internet):
    network, master = internet
    with contextlib.ExitStack() as undo:
        relay = undo.enter_context(inside(network.hub, lambda: relay_at(f"{network.address}:0", None)))
        places = [network.hidden_host(), network.hidden_host(), network.host()]
        actors = join(undo, f"{network.address}:{master.port}", places, PCCL_RELAY=f"{network.address}:{relay.port}")
        logs = all_follow(actors, STEPS)
        check_agreement(logs)
        assert losses(logs[0]) == []
        assert contributors(logs[0])[-1] == 7
        assert relay.links >= 1
        assert relay.bytes > 100_000 * 8
        relay.close()  # the third one relays from here on
        logs = all_follow(actors, STEPS)
        check_agreement(logs)
        assert losses(logs[0]) == []
        assert contributors(logs[0])[-1] == 7


@pytest.mark.plain("the namespaces have networks of their own, which need no keys here")
def test_members_relay_for_two_that_nobody_can_dial(internet):
    """They do without being asked. The links move to another one when the relaying member dies."""
    network, master = internet
    with contextlib.ExitStack() as undo:
        places = [network.hidden_host(), network.hidden_host(), network.host(), network.host()]
        actors = join(undo, f"{network.address}:{master.port}", places)
        logs = all_follow(actors, STEPS)
        check_agreement(logs)
        assert losses(logs[0]) == []
        assert contributors(logs[0])[-1] == 15
        actors[2].kill()
        left = [actors[0], actors[1], actors[3]]
        logs = all_follow(left, STEPS)
        check_agreement(logs)
        assert contributors(logs[0])[-1] == 11


def await_log(path: Path, *texts: str) -> str:
    """What processes have logged, once all of these texts are there."""
    end = time.monotonic() + PATIENCE
    while not all(text in path.read_text() for text in texts):
        assert time.monotonic() < end, path.read_text()
        time.sleep(0.01)
    return path.read_text()


@pytest.mark.plain("the namespaces have networks of their own, which need no keys here")
def test_firewalls_are_noticed(internet, tmp_path):
    """The master dials newcomers. Those behind a firewall are told so, and dial the others; two of them meet at a third."""
    network, master = internet
    with contextlib.ExitStack() as undo:
        places = [network.walled_host(), network.host(), network.walled_host()]
        actors = join(undo, f"{network.address}:{master.port}", places, stderr=tmp_path / "log")
        logs = all_follow(actors, STEPS)
        check_agreement(logs)
        assert losses(logs[0]) == []
        assert contributors(logs[0])[-1] == 7
        said = await_log(
            tmp_path / "log", *(f"the master cannot dial this peer at 203.0.113.{n}:48149 (no answer)" for n in (1, 3))
        )
        assert "Open TCP port 48149 in its firewall" in said
        assert "203.0.113.2:" not in said


@pytest.mark.plain("the namespaces have networks of their own, which need no keys here")
def test_an_address_that_does_not_answer(internet, tmp_path):
    network, master = internet
    with contextlib.ExitStack() as undo:
        wrong = "203.0.113.1:9"
        join(undo, f"{network.address}:{master.port}", [network.host()], stderr=tmp_path / "log", PCCL_ADDRESS=wrong)
        await_log(
            tmp_path / "log", f"the master cannot dial this peer at {wrong} (Connection refused): perhaps no other peer can"
        )
