"""Ports for masters that come back."""

from __future__ import annotations

import itertools
import socket

import pytest

from pccl.lab import ports
from pccl.lab.ports import RANGE, NoPortError, free_ports


def test_ports_are_new_each_time_and_never_the_kernels():
    first, last = map(int, RANGE.read_text().split())
    found = [port for _ in range(20) for port in free_ports(3)]
    assert len(set(found)) == 60
    assert not any(first <= port <= last for port in found)


def test_a_port_in_use_is_passed_over(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        [other] = free_ports(1)
        candidates = iter([taken.getsockname()[1], other])
        monkeypatch.setattr(ports, "_candidates", lambda: candidates)
        assert free_ports(1) == [other]


def test_no_port_left_is_an_error_and_no_search_without_end(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(ports, "_candidates", lambda: itertools.repeat(taken.getsockname()[1]))
        monkeypatch.setattr(ports, "MOST", ports.LEAST + 3)
        with pytest.raises(NoPortError, match="from 10000 to 10002 is free"):
            free_ports(1)
