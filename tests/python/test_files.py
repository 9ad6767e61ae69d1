"""Log files: only their owner reads them, and they are where their name says."""

import errno
import os
import stat
import subprocess
import sys

import pytest
from stress.lab.events import EventLog

from pccl._host.files import open_log, open_log_file


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("make", [lambda path: os.close(open_log(path)), lambda path: open_log_file(path).close(), EventLog])
def test_a_log_is_of_its_owner_and_follows_no_link(make, tmp_path):
    path, target, link = tmp_path / "log", tmp_path / "target", tmp_path / "link"
    make(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    target.write_text("kept")
    link.symlink_to(target)
    with pytest.raises(OSError, match="symbolic link") as raised:
        make(link)
    assert raised.value.errno == errno.ELOOP
    assert target.read_text() == "kept"


@pytest.mark.timeout(60)
def test_a_background_master_refuses_a_link_as_its_log(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("kept")
    link.symlink_to(target)
    command = [sys.executable, "-m", "pccl.master", "--listen", "127.0.0.1:0", "--background", "--log", str(link)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "symbolic link" in ended.stderr
    assert target.read_text() == "kept"
