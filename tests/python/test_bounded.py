"""What other processes and files say is bounded before it is read, and errors are errors."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pccl._host.bounded import LEVELS, read_json, weigh
from pccl._host.holder import Holder, _send
from pccl._run import keys, supervisor
from pccl._watch.recording import RecordingError
from pccl._watch.recording import read as read_recording
from pccl.distributed._board import BootstrapError, _attempt, _read
from pccl.distributed._inventory import told_of
from pccl.monitor.history import LINE_BYTES, Log, read_file
from pccl.state import TreeError
from pccl.state._local.tree import encode
from pccl.state._memory_metadata import decode_content
from pccl.state._snapshots.snapshot import Layout
from pccl.state._snapshots.talk import Window
from pccl.state._snapshots.transfer import Transfer, _Message

PRIME = (1 << 61) - 1
"""Python takes numbers modulo this for their hash."""

HEAD = b'{"kind":"pccl-events","format":1}\n'

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@given(values)
def test_a_text_weighs_at_least_what_its_value_takes(value):
    text = json.dumps(value).encode()
    weight = weigh(text, 1 << 62, LEVELS)
    tracemalloc.start()
    read = json.loads(text)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert read == value == read_json(text, len(text))
    assert taken <= weight + 1000


@given(st.text(alphabet='"\\[]{}:,a'))
def test_any_text_is_weighed(text):
    with suppress(ValueError):
        weigh(text.encode(), 1 << 62, LEVELS)


@pytest.mark.parametrize("text", [b"[" * 100 + b"]" * 100, b"NaN", b"[Infinity]", b"[}", b'["\\"]', b"1" * 101, b"\xff"])
def test_texts_that_are_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 it has many words
        read_json(text, 250 if text[:1] in b"[" else 100)


@pytest.mark.parametrize("text", [b"[" * 60 + b"]" * 60, b'"' + b"[{" * 40 + b'"', b'"\\\\\\"[["'])
def test_brackets_in_strings_do_not_count(text):
    assert read_json(text, 1000) == json.loads(text)


def test_keys_are_read_from_short_files_only(tmp_path):
    run = tmp_path / "run"
    path, _ = keys.write_files(run, keys.new_keys())
    text = path.read_text()
    path.write_text(text + "#" * (keys.FILE_BYTES - len(text)))
    assert keys.read_file(path)[0] == "master"
    path.write_text(text + "#" * keys.FILE_BYTES)
    for one in (path, Path("/dev/zero")):
        with pytest.raises(keys.KeysError, match="too long"):
            keys.read_file(one)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(keys.KeysError):
        keys.read_file(tmp_path / "pipe")


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_are_keys_or_an_error(content, at):
    text = keys.Keys((b"s" * 32,), b"p" * 32, b"k" * 32).text("master").encode()
    with tempfile.NamedTemporaryFile() as file:
        file.write(text[:at] + content + text[at + len(content) :])
        file.flush()
        with suppress(keys.KeysError):
            keys.read_file(file.name)


def events_in(content: bytes) -> list[dict]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return list(read_file(file.name))


@pytest.mark.parametrize(
    "line",
    [
        b'{"at":1,"kind":"a","x":"' + b"x" * LINE_BYTES + b'"}\n',
        b'{"at":1,"kind":"a","x":"' + b"x" * LINE_BYTES,
        b'{"at":1,"kind":"a","x":' + b"[" * 500 + b"]" * 500 + b"}\n",
        b'{"at":1,"kind":"a","x":NaN}\n',
    ],
)
def test_lines_of_events_that_are_refused(line):
    event = b'{"at":1,"kind":"a"}\n'
    assert events_in(HEAD + event + b'{"at":1') == [{"at": 1, "kind": "a"}]
    with pytest.raises(ValueError, match="line 3"):
        events_in(HEAD + event + line)


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_an_error(content):
    with suppress(ValueError):
        log = Log()
        log.add(events_in(HEAD + content))


@pytest.mark.long
@pytest.mark.parametrize("item", [b'{"at":0,"kind":""}\n', b'{"at":0,"kind":"","a":[%s9]}\n' % (b"[]," * 40_000)])
def test_a_file_of_events_takes_memory_in_proportion(item):
    content = HEAD + item * ((1 << 20) // len(item))
    log = Log(most_bytes=1 << 40)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        tracemalloc.start()
        log.add(read_file(file.name))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 8 * len(content)


@given(st.binary(max_size=5000))
def test_any_bytes_are_a_recording_or_an_error(content):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"pcclevt\0" + content)
        file.flush()
        with suppress(RecordingError):
            read_recording(file.name)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 5000, '{"world_size":"x"}', "x" * 100_000, "\ud800", "5"])
def test_what_is_no_place_of_a_rank_is_an_error_that_says_so(text):
    with pytest.raises((BootstrapError, UnicodeEncodeError), match=r"store of init_process_group|surrogates"):
        _read(text)
    with pytest.raises(BootstrapError, match="store of init_process_group"):
        _attempt(text.encode(errors="replace"))


def test_a_place_with_a_wrong_type_is_an_error():
    texts = dict.fromkeys(("node", "network", "address", "masters", "keys", "token", "membership"), "x")
    place = {**texts, "stands_in": False}
    assert _read(json.dumps({**place, "world_size": 2})).world_size == 2
    for wrong in (
        {"world_size": "2"},
        {"world_size": True},
        {"world_size": 2, "masters": 5},
        {"world_size": 2, "stands_in": "x"},
        {"world_size": 2, "more": "x"},
    ):
        with pytest.raises(BootstrapError):
            _read(json.dumps({**place, **wrong}))


def test_a_layout_of_more_members_than_a_run_has_is_refused():
    def of(count: int) -> bytes:
        return bytes(encode({"hosts": ["a"] * count, "maps": [{}] * count, "redundancy": [1, 0]}))

    assert len(Layout.decoded(of(3)).maps) == 3
    with pytest.raises((TreeError, ValueError), match="1024"):
        Layout.decoded(of(1025))


def ask_without_reading(end: socket.socket) -> None:
    end.setblocking(False)
    blocked = time.monotonic() + 1.0
    while True:
        try:
            _send(end, {"do": "get", "key": "x"})
            blocked = time.monotonic() + 1.0
        except BlockingIOError:
            assert time.monotonic() < blocked, "the holder waits for this client"


def test_many_items_of_a_checkpoint_with_one_hash_are_refused():
    def of(count: int) -> bytes:
        offsets = [torch.Size((number >> shift & 3) * PRIME for shift in (0, 2, 4, 6)) for number in range(count)]
        storage = [["a", offset, None, "b"] for offset in offsets]
        return bytes(encode({"id": None, "state": {}, "planner": None, "storage": storage, "meta": None, "version": None}))

    assert len(decode_content(of(8)).metadata.storage_data) == 8
    with pytest.raises(TreeError, match="same hash"):
        decode_content(of(100))


def test_an_inventory_of_more_members_than_a_run_has_is_refused():
    with pytest.raises(ValueError, match="1024"):
        told_of({"members": [UUID(int=number * PRIME) for number in range(2000)], "version": []})


@pytest.mark.parametrize("failed", [0, 1])
def test_a_member_that_has_failed_tells_no_hash(failed):
    """Zeros stand for the hash that it lacks, and are no hash."""
    stripe = SimpleNamespace(data=[(1, 0)], parity=[0])
    told = torch.cat([torch.tensor([failed, 0, 0, 0]).view(torch.uint8), torch.zeros(1, dtype=torch.uint8)])
    transfer: Any = object.__new__(Transfer)
    transfer._layout = SimpleNamespace(range_of=lambda *_: (0, 8), placement=SimpleNamespace(stripes=[stripe]))
    transfer._snapshot = SimpleNamespace(sums={})
    transfer._talk = SimpleNamespace(recv=lambda _sender, _name, into: into.copy_(told), wait=lambda _op: None)
    message = _Message(0, 0, 0, 1, 0)
    assert transfer._receive(message, None, Window(transfer._talk), torch.empty(0)) == (not failed)
    assert list(transfer._snapshot.sums) == ([] if failed else [1])


@pytest.mark.timeout(60)
def test_a_client_that_does_not_read_keeps_no_other_from_its_holder():
    name = f"test-{uuid4().hex}"
    client, other = Holder(name), Holder(name)
    try:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            ask_without_reading(other._end)
        assert client.kept() == []
    finally:
        pid = int.from_bytes(client._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        os.kill(pid, 9)
        client.close()
        other.close()


def test_a_supervisor_keeps_no_word_without_an_end():
    source, target = os.pipe()
    child = supervisor.Child(0, source)
    try:
        for _ in range(64):
            os.write(target, b"x" * 60_000)
            child._read()
        assert len(child._rest) <= supervisor.WORD_BYTES
        os.write(target, b"\njoined\n")
        child._read()
        assert child.joined
    finally:
        os.close(source)
        os.close(target)
