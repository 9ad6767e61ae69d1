"""Keys that a job makes for itself: who can read them, and when their folder goes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pccl._run import keys, own_keys
from pccl._run.own_keys import OwnKeys

if own_keys.why_plain():
    pytest.skip(own_keys.why_plain(), allow_module_level=True)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Where folders are made; the list of those that are there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return lambda: sorted(path.name for path in tmp_path.iterdir())


def test_only_the_user_reads_them(folders):
    before = os.umask(0)
    try:
        own = OwnKeys()
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in own.folder.iterdir()} == {"run.master": 0o600, "run.peer": 0o600}
    assert own.folder.stat().st_mode & 0o777 == 0o700
    assert own_keys.check_folder(str(own.folder)) == (own.master, own.peer)
    (role, masters), (other, peers) = (keys.read_file(path) for path in (own.master, own.peer))
    assert (role, other, peers.master_key) == ("master", "peer", None)
    assert peers.secrets == masters.secrets
    own.close()
    own.close()
    assert folders() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_reads_nothing(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # which other users can enter
    with OwnKeys() as own:
        for path in (own.folder, own.peer, own.master):
            read = subprocess.run(["ls" if path == own.folder else "cat", path], user=65534, capture_output=True, text=True)
            assert read.returncode != 0
            assert "Permission denied" in read.stderr


def test_jobs_have_folders_of_their_own(folders):
    with OwnKeys() as one, OwnKeys() as other:
        assert one.folder != other.folder
        assert keys.read_file(one.peer)[1].secrets != keys.read_file(other.peer)[1].secrets
        assert len(folders()) == 2
    assert folders() == []


HOLDER = """
import signal, sys, tempfile
from pccl._run.own_keys import OwnKeys
tempfile.tempdir = sys.argv[1]
own = OwnKeys()
print(own.folder, flush=True)
signal.pause()
"""


def test_the_next_job_removes_what_a_killed_one_has_left(tmp_path, folders):
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        folder = Path(holder.stdout.readline().strip())
        with OwnKeys():
            assert folder.exists()  # it is held
        holder.send_signal(signal.SIGKILL)
    assert folders() == [folder.name]
    with OwnKeys() as own:
        assert folders() == [own.folder.name]


def test_a_folder_stays_while_another_process_holds_it(folders):
    own = OwnKeys()
    other = own_keys._lock(own.folder)
    own.close()
    assert folders() == [own.folder.name]
    own_keys._remove(own.folder, other)
    assert folders() == []


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "run.peer").touch()
    (tmp_path / f"{own_keys._prefix()}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{own_keys._prefix()}used").mkdir()
    (tmp_path / f"{own_keys._prefix()}used" / "other").touch()
    backup = tmp_path / f"{own_keys.PREFIX}backup"
    shutil.copytree(tmp_path / "elsewhere", backup)
    with OwnKeys():
        pass
    assert (tmp_path / "elsewhere" / "run.peer").exists()
    assert (tmp_path / f"{own_keys._prefix()}used" / "other").exists()
    assert (backup / "run.peer").exists()


def test_the_folder_of_a_living_job_on_another_host_stays(monkeypatch, folders):
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    own = OwnKeys()
    os.close(own._descriptor)  # its lock is not seen here
    monkeypatch.setattr("socket.gethostname", lambda: "this")
    with OwnKeys():
        pass
    assert folders() == [own.folder.name]


def test_keys_that_the_user_made_are_refused(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir(0o700)
    with OwnKeys() as own:
        for path in own.folder.iterdir():
            shutil.copy(path, folder)
    with pytest.raises(keys.KeysError, match="does not begin with pccl-keys-"):
        own_keys.check_folder(str(folder))


def test_a_folder_that_is_gone_is_released(folders):
    own = OwnKeys()
    shutil.rmtree(own.folder)
    own.close()
    assert folders() == []


def link_folder(folder: Path) -> Path:
    link = folder.with_name("link")
    link.symlink_to(folder)
    return link


def link_file(folder: Path) -> Path:
    (folder / "run.peer").rename(folder / "moved")
    (folder / "run.peer").symlink_to(folder / "moved")
    return folder


def open_to_all(name: str, mode: int):
    def change(folder: Path) -> Path:
        (folder / name).chmod(mode)
        return folder

    return change


def remove(folder: Path) -> Path:
    (folder / "run.master").unlink()
    return folder


@pytest.mark.parametrize(
    "change",
    [link_folder, link_file, open_to_all(".", 0o755), open_to_all("run.peer", 0o640), open_to_all("run.master", 0o604), remove],
)
def test_a_folder_that_is_not_this_users_alone_is_refused(change):
    own = OwnKeys()
    with pytest.raises((OSError, keys.KeysError)):
        own_keys.check_folder(str(change(own.folder)))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
@pytest.mark.parametrize("name", [".", "run.peer", "run.master"])
def test_a_folder_of_another_user_is_refused(name):
    with OwnKeys() as own:
        os.chown(own.folder / name, 65534, -1)
        with pytest.raises(keys.KeysError, match="not made by a process of this user"):
            own_keys.check_folder(str(own.folder))
        os.chown(own.folder / name, 0, -1)


def test_without_encryption_there_are_none(monkeypatch, folders):
    monkeypatch.setenv("PCCL_INSECURE", "1")
    monkeypatch.delenv("PCCL_KEYS", raising=False)
    with own_keys.local_master() as run:
        assert run.keys() == {"PCCL_MASTER"}
    assert folders() == []
