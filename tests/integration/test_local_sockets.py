"""Names of local sockets: what prints them, such as `ss` and readers of /proc/net/unix, gets plain text."""

import re
from pathlib import Path

import pccl


def test_names_of_local_sockets_are_printable():
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
        comm.connect()
        sockets = Path("/proc/net/unix").read_bytes()
    assert re.search(rb"@pccl-[0-9a-f]{32}$", sockets, re.MULTILINE)
