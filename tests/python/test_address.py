"""Addresses: what is accepted, what is refused and how, and what names resolve to."""

import ipaddress
import socket
import string
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pccl
from pccl._core.address import parse_endpoint, parse_endpoints, resolve
from pccl._core.calls import Deadline

GOOD = [
    ("127.0.0.1:48148", "127.0.0.1", 48148),
    ("0.0.0.0:0", "0.0.0.0", 0),
    ("[::1]:65535", "::1", 65535),
    ("[2001:db8::7]:1", "2001:db8::7", 1),
    ("localhost:48148", "localhost", 48148),
    ("node-3.train.example.org:48148", "node-3.train.example.org", 48148),
    ("master_1:48148", "master_1", 48148),
    ("master_1:48148/run-1.a_B", "master_1", 48148),
    ("[::1]:65535/" + 64 * "r", "::1", 65535),
]

BAD = [
    ("localhost", pccl.ArgumentError, "no port"),
    ("127.0.0.1", pccl.ArgumentError, "no port"),
    ("", pccl.ArgumentError, "no port"),
    ("localhost:", pccl.ArgumentError, "invalid port"),
    ("localhost:http", pccl.ArgumentError, "invalid port"),
    ("localhost:-1", pccl.ArgumentError, "invalid port"),
    ("localhost:65536", pccl.ArgumentError, "invalid port"),
    ("localhost: 80", pccl.ArgumentError, "invalid port"),
    ("localhost:٣", pccl.ArgumentError, "invalid port"),
    (":48148", pccl.ArgumentError, "invalid host"),
    ("1.2.3:48148", pccl.ArgumentError, "invalid IPv4"),
    ("1.2.3.256:48148", pccl.ArgumentError, "invalid IPv4"),
    ("::1:48148", pccl.ArgumentError, "brackets"),
    ("[::1:48148", pccl.ArgumentError, "brackets"),
    ("[::g]:48148", pccl.ArgumentError, "invalid IPv6"),
    ("[fe80::1%eth0]:48148", pccl.ArgumentError, "invalid IPv6"),
    ("two words:48148", pccl.ArgumentError, "invalid host"),
    ("-a:48148", pccl.ArgumentError, "invalid host"),
    ("a..b:48148", pccl.ArgumentError, "invalid host"),
    ("http://host:48148", pccl.ArgumentError, "URL"),
    ("host:48148/", pccl.ArgumentError, "invalid name of a run"),
    ("host:48148/two words", pccl.ArgumentError, "invalid name of a run"),
    ("host:48148/one/two", pccl.ArgumentError, "invalid name of a run"),
    ("host:48148/" + 65 * "r", pccl.ArgumentError, "1 to 64 letters"),
    (("127.0.0.1", 48148), TypeError, "must be a str"),
]


@pytest.mark.parametrize(("text", "host", "port"), GOOD)
def test_good(text, host, port):
    endpoint = parse_endpoint(text)
    assert (endpoint.host, endpoint.port) == (host, port)
    assert str(endpoint) == text


@pytest.mark.parametrize(("text", "kind", "words"), BAD)
@pytest.mark.parametrize("made", [pccl.Communicator, pccl.MasterNode])
def test_bad(made, text, kind, words):
    with pytest.raises(kind, match=words) as caught:
        made(text)
    assert repr(text) in str(caught.value)


def test_no_address(monkeypatch):
    monkeypatch.delenv("PCCL_MASTER", raising=False)
    with pytest.raises(pccl.ArgumentError, match="pass host:port, or set PCCL_MASTER"):
        pccl.Communicator(None)
    with pytest.raises(TypeError, match="must be a str"):
        pccl.MasterNode(None)


@pytest.mark.parametrize("text", ["a:1,b:2/run", "a:1/run,b:2/run", "a:1/run, [::1]:2/run"])
def test_a_list_of_masters_has_one_run(text):
    assert [endpoint.run for endpoint in parse_endpoints(text)] == ["run"] * 2


@pytest.mark.parametrize("text", ["a:1/run,b:2", "a:1/run,b:2/other"])
def test_a_list_with_several_runs_is_refused(text):
    with pytest.raises(ValueError, match="name several runs"):
        pccl.Communicator(text)


def test_a_master_has_no_run_of_its_own():
    for arguments in (("127.0.0.1:1/run", None), ("127.0.0.1:1", "127.0.0.1:1/run")):
        with pytest.raises(ValueError, match="a master serves runs of all names"):
            pccl.MasterNode(arguments[0], masters=arguments[1])


@given(st.text(alphabet=string.printable, max_size=40))
def test_any_text_is_accepted_or_refused_in_words(text):
    refusal = ""
    try:
        assert parse_endpoint(text).host
    except pccl.ArgumentError as error:
        refusal = str(error)
    assert not refusal or repr(text) in refusal


def test_a_communicator_needs_a_port():
    with pytest.raises(ValueError, match="port 0"):
        pccl.Communicator("127.0.0.1:0")


def test_all_results_of_a_name_are_kept(monkeypatch):
    def answer(host, port, **_):
        found = [
            (socket.AF_INET6, "::1"),
            (socket.AF_INET, "10.0.0.1"),
            (socket.AF_INET, "10.0.0.1"),
            (socket.AF_INET6, "fe80::1%lo"),
        ]
        return [(family, socket.SOCK_STREAM, 6, "", (text, port)) for family, text in found]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    found = resolve(parse_endpoint("somewhere:1"), Deadline(None))
    assert found == [ipaddress.ip_address("::1"), ipaddress.ip_address("10.0.0.1")]


def test_a_slow_look_up_ends_at_the_deadline(monkeypatch):
    release = threading.Event()

    def answer_late(*_, **__):
        release.wait(100)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", answer_late)
    with pytest.raises(TimeoutError):
        resolve(parse_endpoint("somewhere:1"), Deadline(0.1))
    release.set()


@pytest.mark.parametrize("answer", [[], [(socket.AF_UNIX, 1, 0, "", "/path")]])
def test_a_name_without_an_address_that_can_be_used(monkeypatch, answer):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(OSError, match="somewhere has no usable address"):
        resolve(parse_endpoint("somewhere:1"), Deadline(None))


def test_a_name_that_does_not_resolve(monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr("pccl._peer.connection.PAUSE_SECONDS", 0.01)
    with pccl.Communicator("nowhere.invalid:48148") as comm, pytest.raises(pccl.PCCLError, match="Failed to connect") as caught:
        comm.connect(2)
    assert "nowhere.invalid" in caught.value.detail
    with pytest.raises(pccl.PCCLError) as caught:
        pccl.MasterNode("nowhere.invalid:48148")
    assert "nowhere.invalid" in caught.value.detail
