"""Network cards that a program names."""

from __future__ import annotations

import pytest

from pccl import Communicator, MasterNode, PCCLError, Result


def test_a_card_and_a_sequence(monkeypatch):
    """They take the place of those of the environment; whether the peer relays stays."""
    monkeypatch.setenv("PCCL_INTERFACE", "lo")
    with MasterNode("127.0.0.1:0") as master:
        for interface in ("lo", ["lo"], ("lo", "lo")):
            with Communicator(f"127.0.0.1:{master.port}", interface=interface) as comm:
                comm.connect()
                assert comm.world_size == 1


def test_a_card_that_is_not_there():
    with pytest.raises(
        PCCLError, match=r"^\w+: interface nothing0 does not exist or has no address; this host has .*lo"
    ) as caught:
        Communicator("127.0.0.1:1", interface=["lo", "nothing0"]).connect(timeout=20)
    assert caught.value.result == Result.INVALID_ARGUMENT


@pytest.mark.parametrize("interface", [5, ["lo", 3], {"lo"}])
def test_what_is_no_name_of_an_interface(interface):
    with pytest.raises(TypeError, match="interface must be a name such as 'eth0', or a sequence of names"):
        Communicator("127.0.0.1:1", interface=interface)
