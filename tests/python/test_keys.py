"""Files of keys, and `pccl keys`: made, changed, shown; what is cut or open to others; no secret in what is printed."""

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from pccl import _native
from pccl._run import keys as _keys
from pccl.cli.keys import command

ffi, C = _native.ffi, _native.lib


def _has_encryption() -> bool:
    try:
        _keys.new_keys()
    except Exception:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_encryption(), reason="this build has no encryption")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PCCL_KEYS", raising=False)
    return tmp_path


def run(*arguments, status=0, **variables):
    result = CliRunner().invoke(command, arguments, env=variables)
    assert result.exit_code == status, result.output
    for path in Path().glob("*.*"):  # whatever is printed, no secret is
        if path.is_file() and path.read_bytes().startswith(b"pccl-keys"):
            for word in re.findall("[0-9a-f]{64}", path.read_text()):
                assert word not in result.output
    return result.output


def checked(path):
    """What the core says of a file: whether it is for masters, or why it cannot be used."""
    master = ffi.new("bool *")
    code = C.pccl_ext_keys_check(os.fspath(path).encode(), master)
    return master[0] if code == 0 else ffi.string(C.pccl_ext_detail()).decode()


def secrets_of(path):
    return [_keys.secret_id(secret) for secret in _keys.read_file(path)[1].secrets]


@pytest.mark.parametrize("mask", [0o022, 0o000, 0o077, 0o777])
def test_both_files_are_for_their_owner_alone(mask):
    before = os.umask(mask)
    try:
        run("job")
    finally:
        os.umask(before)
    for path in map(Path, ("job.master", "job.peer")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [checked("job.master"), checked("job.peer")] == [True, False]
    assert "master-key" in Path("job.master").read_text()
    assert "master-key" not in Path("job.peer").read_text()
    assert sorted(os.listdir()) == ["job.master", "job.peer"]


def test_two_runs_have_nothing_in_common():
    run("a")
    run("b")
    lines = [set(Path(f"{name}.master").read_text().splitlines()) for name in "ab"]
    assert all(line.startswith(("pccl-keys", "#")) for line in lines[0] & lines[1])


@pytest.mark.parametrize("there", ["job.master", "job.peer"])
def test_nothing_is_replaced(there):
    Path(there).write_text("mine")
    assert "exists" in run("job", status=1)
    assert Path(there).read_text() == "mine"
    assert os.listdir() == [there]


def test_a_link_that_leads_nowhere_is_not_followed():
    os.symlink("elsewhere", "job.peer")
    assert "exists" in run("job", status=1)
    assert os.listdir() == ["job.peer"]


def test_rotation():
    run("job")
    (old,) = secrets_of("job.peer")
    run("job", "--add")
    assert secrets_of("job.peer") == secrets_of("job.master")
    assert secrets_of("job.peer")[0] == old
    assert [checked("job.master"), checked("job.peer")] == [True, False]
    new = secrets_of("job.peer")[1]
    assert "two secrets" in run("job", "--add", status=1)
    run("job", "--drop")
    assert secrets_of("job.peer") == secrets_of("job.master") == [new]
    assert "one secret alone" in run("job", "--drop", status=1)
    assert [stat.S_IMODE(os.stat(name).st_mode) for name in sorted(os.listdir())] == [0o600, 0o600]


@pytest.mark.parametrize("change", ["--add", "--drop"])
def test_what_is_not_there_cannot_be_changed(change):
    assert "job.master, which is not here" in run("job", change, status=1)
    assert os.listdir() == []


def test_show():
    run("job")
    run("job", "--add")
    old, new = secrets_of("job.peer")
    for names in (["job"], ["job.master"], ["job.peer"], ["./job"]):
        shown = run("show", *names)
        assert f"{old} (older)" in shown
        assert f"{new} (newer)" in shown
    assert "for masters" in run("show", "job")
    assert "for peers" in run("show", "job")
    assert "for masters" not in run("show", PCCL_KEYS="job.peer")
    assert "name a run" in run("show", status=2)
    assert "exists" in run("show", "other", status=1)


def test_the_file_of_one_run():
    run("job")
    assert "job-bert.peer for peers of run bert alone" in run("job", "--run", "bert")
    assert stat.S_IMODE(os.stat("job-bert.peer").st_mode) == 0o600
    assert checked("job-bert.peer") is False
    role, keys = _keys.read_file("job-bert.peer")
    everything = _keys.read_file("job.master")[1]
    assert (role, keys.run, keys.master_public, keys.master_key) == ("peer", "bert", everything.master_public, None)
    assert keys.secrets == (_keys.derived_secret(everything.secrets[0], "bert"),)
    before = Path("job-bert.peer").read_text()
    run("job", "--run", "bert")  # follows from job.master, so it is the same
    assert Path("job-bert.peer").read_text() == before
    run("job", "--run", "gpt")
    assert secrets_of("job-gpt.peer") != secrets_of("job-bert.peer")
    for name in ("job-bert.peer", "job-bert"):
        assert run("show", name).startswith("job-bert.peer: for peers of run bert\n")
    assert [line.split(":")[0] for line in run("show", "job").splitlines() if ":" in line] == [
        "job.master",
        "job.peer",
        "job-bert.peer",
        "job-gpt.peer",
    ]


def test_names_that_files_of_runs_take():
    run("job")
    run("job", "--run", "bert")
    assert "job-bert.peer is the file of run bert: choose another name" in run("job-bert", status=1)
    run("job-gpt")
    assert "job-gpt.peer belongs to job-gpt.master: choose another name" in run("job", "--run", "gpt", status=1)


def test_rotation_changes_the_files_of_runs():
    run("job")
    run("job", "--run", "bert")
    run("other")
    run("job-more")  # of other masters, though its name begins alike
    others = Path("job-more.peer").read_text()
    (old,) = secrets_of("job-bert.peer")
    assert "job-bert.peer have a second secret" in run("job", "--add")
    assert secrets_of("job-bert.peer")[0] == old
    run("job", "--drop")
    (new,) = secrets_of("job-bert.peer")
    assert new != old
    assert new == _keys.secret_id(_keys.derived_secret(_keys.read_file("job.master")[1].secrets[0], "bert"))
    assert Path("job-more.peer").read_text() == others


def test_wrong_names_of_runs():
    assert "--run needs job.master, which is not here" in run("job", "--run", "bert", status=1)
    run("job")
    for name in ("", "a b", "a/b", "*", "n" * 65):
        assert "no name of a run" in run("job", "--run", name, status=1)
    run("job-bert")
    assert "belongs to job-bert.master" in run("job", "--run", "bert", status=1)
    Path("job-gpt.peer").write_text("mine")
    assert "is not the file of run gpt with the keys of job.master: remove it first" in run("job", "--run", "gpt", status=1)
    Path("job-gpt.peer").unlink()
    assert "leave --run out" in run("job", "--run", "gpt", "--add", status=2)
    assert "cannot be used" in run("show", "job", "--run", "gpt", status=2)
    assert sorted(os.listdir()) == ["job-bert.master", "job-bert.peer", "job.master", "job.peer"]


def test_files_of_runs_that_are_cut_or_changed():
    run("job")
    run("job", "--run", "bert")
    text = Path("job-bert.peer").read_text()
    for changed in (text.replace("run bert\n", "run a/b\n"), text.replace("run bert\n", "run\n"), text + "run bert\n"):
        Path("job-bert.peer").write_text(changed)
        with pytest.raises(_keys.KeysError, match="run is cut"):
            _keys.read_file("job-bert.peer")
        assert "its run is cut" in checked("job-bert.peer")
    master = Path("job.master").read_text()
    Path("job.master").write_text(master + "run bert\n")
    assert "cannot be that of one run" in checked("job.master")
    run("show", "job.master", status=1)


def test_wrong_arguments():
    assert "are two steps" in run("job", "--add", "--drop", status=2)
    assert "name one run" in run("a", "b", status=2)
    assert "a folder that exists" in run("no/where", status=1)
    assert "a folder that exists" in run("..", status=1)
    assert "cannot be used" in run("show", "a", "--add", status=2)
    assert os.listdir() == []


def changes(text):
    """Texts of a file that must not be used, each with part of what is said of it."""
    lines = text.splitlines(keepends=True)
    yield "", "is empty"
    yield text.replace("pccl-keys 1", "pccl-keys 9"), "another version"
    yield text.replace("pccl-keys 1", "other-keys 1"), "written by"
    yield "".join(lines[:-1]), "cut"
    yield "".join(line for line in lines if not line.startswith("secret")), "cut"
    yield re.sub("secret ([0-9a-f]+) .", r"secret \1 ", text), "cut"
    yield text + "token 1\n", "does not know"
    yield text + lines[-1], "cut|master-public"


def test_files_that_are_cut_or_changed():
    run("job")
    good = Path("job.master").read_text()
    for text, reason in list(changes(good)):
        Path("job.master").write_text(text)
        with pytest.raises(_keys.KeysError, match=reason):
            _keys.read_file("job.master")
        assert re.search(reason, checked("job.master"))
        run("show", "job.master", status=1)
    Path("job.master").write_bytes(good.replace("\n", "\r\n").encode())
    assert checked("job.master") is True
    assert _keys.read_file("job.master")[0] == "master"
    Path("job.master").write_bytes(b"\xff\x00")
    run("show", "job.master", status=1)


def usable(path, user):
    """Whether a process of this user, in the group of the same number alone, can use the file."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            status = int(C.pccl_ext_keys_check(os.fsencode(path), ffi.new("bool *")) != 0)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize(
    ("owner", "group", "mode", "accepted"),
    [
        (0, 10001, 0o440, True),  # a Secret with fsGroup
        (0, 0, 0o400, False),  # one without
        (0, 10001, 0o444, False),
        (0, 10001, 0o460, False),
        (10001, 10001, 0o400, True),
        (10001, 10001, 0o440, False),
        (10002, 10001, 0o440, False),
    ],
)
def test_the_file_of_a_mounted_secret(owner, group, mode, accepted):
    with tempfile.TemporaryDirectory(dir="/tmp") as mounted:
        os.chmod(mounted, 0o755)
        data = Path(mounted, "..2026")
        data.mkdir(0o755)
        _, peer = _keys.write_files(data / "run", _keys.new_keys())
        Path(mounted, "..data").symlink_to(data.name)
        Path(mounted, "run.peer").symlink_to("..data/run.peer")
        os.chown(peer, owner, group)
        peer.chmod(mode)
        assert usable(Path(mounted, "run.peer"), 10001) == accepted


def test_a_disk_that_is_full_leaves_the_old_files(monkeypatch):
    run("job")
    before = Path("job.master").read_text(), Path("job.peer").read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in run("job", "--add", status=1)
    assert (Path("job.master").read_text(), Path("job.peer").read_text()) == before
    assert sorted(os.listdir()) == ["job.master", "job.peer"]


FIPS = """openssl_conf = init
[init]
providers = providers
alg_section = algorithms
[providers]
default = default
[default]
activate = 1
[algorithms]
default_properties = fips=yes
"""


def test_fips_mode_is_named():
    run("job")
    Path("fips.cnf").write_text(FIPS)
    for arguments in (["keys", "other"], ["master", "--listen", "127.0.0.1:0", "--keys", "job.master"]):
        words = [sys.executable, "-m", "pccl", *arguments]
        ended = subprocess.run(words, env=os.environ | {"OPENSSL_CONF": "fips.cnf"}, capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0
        assert "OpenSSL makes no Ed25519 key" in ended.stderr
