"""Runs with certificates in place of keys: roles, wrong files, renewal, and expiry in the middle of a run."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from peers import ENVIRONMENT, PATIENCE, address_of, admit, on_all

from pccl import Communicator, ConnectError, MasterNode, PCCLError
from pccl._core.address import parse_endpoint
from pccl._run.credentials import credentials
from pccl._run.relay import Relay
from pccl.lab.ports import free_ports

pytestmark = pytest.mark.plain("keys and certificates exclude each other")

LOCAL = "127.0.0.1:0"
RUN = "spiffe://example.org/ns/train/pccl/"
SOON_SECONDS = 10
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Files:
    """What a process is given."""

    cert: Path
    key: Path
    ca: Path

    @property
    def arguments(self) -> dict[str, Path]:
        return {"cert": self.cert, "key": self.key, "ca": self.ca}

    @property
    def options(self) -> list[str]:
        return ["--cert", str(self.cert), "--key", str(self.key), "--ca", str(self.ca)]

    @property
    def environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "PCCL_CERT": str(self.cert), "PCCL_KEY": str(self.key), "PCCL_CA": str(self.ca)}


class Authority:
    """Issues certificates, as cert-manager or SPIRE does."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._count = 0
        self.certificate = (
            self._builder(self._key, self._name, datetime.now(UTC) + HOUR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.bundle = folder / f"{name}.crt"
        self.bundle.write_bytes(self.pem)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def _builder(self, key: ec.EllipticCurvePrivateKey, subject: x509.Name, until: datetime) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - 2 * HOUR)
            .not_valid_after(until)
        )

    def issue(self, *roles: str, until: datetime | None = None, renews: Files | None = None, run: str = RUN) -> Files:
        """Writes a certificate with these roles, valid for an hour, in place of `renews` if that is given."""
        key = ec.generate_private_key(ec.SECP256R1())
        self._count += 1
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"process {self._count}")])
        names = [x509.UniformResourceIdentifier(run + role) for role in roles] or [x509.DNSName("localhost")]
        certificate = (
            self._builder(key, subject, until or datetime.now(UTC) + HOUR)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        base = self._folder / f"{self._name.rfc4514_string()}-{self._count}"
        files = renews or Files(base.with_suffix(".crt"), base.with_suffix(".key"), self.bundle)
        plain = serialization.NoEncryption()
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        for path, content in ((files.cert, certificate.public_bytes(serialization.Encoding.PEM)), (files.key, text)):
            fresh = path.with_suffix(".new")
            fresh.touch(mode=0o600)
            fresh.write_bytes(content)
            fresh.replace(path)
        return files


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def team(
    authority: Authority, count: int, until: datetime | None = None
) -> Iterator[tuple[MasterNode, Files, list[Communicator]]]:
    """A master with its files, and peers, each with a certificate of its own."""
    files = authority.issue("master", until=until)
    with MasterNode(LOCAL, **files.arguments) as master, ExitStack() as stack:
        comms: list[Communicator] = []
        for _ in range(count):
            fresh = Communicator(address_of(master), **authority.issue("peer", until=until).arguments)
            admit(comms, stack.enter_context(fresh))
            comms.append(fresh)
        yield master, files, comms


def sums(comms: list[Communicator], tag: int = 0) -> list[float]:
    def reduce(comm: Communicator, rank: int) -> float:
        value, result = np.full(100_000, 1 << rank, np.float32), np.zeros(100_000, np.float32)
        comm.all_reduce(value, result, tag=tag)
        assert np.all(result == result[0])
        return float(result[0])

    return on_all(comms, reduce)


def refusal(comm: Communicator) -> str:
    """Why a peer cannot connect."""
    with comm, pytest.raises(ConnectError) as caught:
        comm.connect(1)
    return str(caught.value)


@contextmanager
def master_process(files: Files, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`pccl master` with these options, and its address. It is killed at the end."""
    command = [sys.executable, "-m", "pccl", "master", "--listen", LOCAL, *options]
    environment = ENVIRONMENT if options else files.environment
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


# ---- what works ----


def test_all_reduce(authority, monkeypatch):
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", "0")
    with team(authority, 3) as (_, _, comms):
        for tag in range(3):
            assert sums(comms, tag) == [7, 7, 7]


def test_two_meet_at_a_relay(authority, monkeypatch):
    peer = authority.issue("peer")
    with Relay(parse_endpoint(LOCAL), credentials(None, peer.cert, peer.key, peer.ca)) as relay:
        monkeypatch.setenv("PCCL_ADDRESS", "none")
        monkeypatch.setenv("PCCL_RELAY", f"127.0.0.1:{relay.port}")
        with team(authority, 2) as (_, _, comms):
            assert sums(comms) == [3, 3]
            assert relay.links >= 1


def test_one_certificate_with_both_roles(authority):
    files = authority.issue("master", "peer")
    with MasterNode(LOCAL, **files.arguments) as master, Communicator(address_of(master), **files.arguments) as comm:
        comm.connect(timeout=PATIENCE)


@pytest.mark.parametrize("given", ["options", "environment"])
def test_commands(authority, given):
    master, peer = authority.issue("master"), authority.issue("peer")
    options = master.options if given == "options" else []
    with master_process(master, *options) as (_, address), Communicator(address, **peer.arguments) as comm:
        comm.connect(timeout=PATIENCE)
        command = [sys.executable, "-m", "pccl", "top", "--master", address, "--once", "--json"]
        asking = {"args": [*command, *peer.options], "env": ENVIRONMENT}
        if given == "environment":
            asking = {"args": command, "env": peer.environment}
        done = subprocess.run(**asking, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert len(json.loads(done.stdout)["members"]) == 1


def test_bench(authority):
    size = ["--world", "2", "--sizes", "4K", "--iterations", "2", "--json"]
    files = authority.issue("master"), authority.issue("peer")
    with master_process(files[0], *files[0].options) as (_, address):
        command = [sys.executable, "-m", "pccl", "bench", "allreduce", "--master", address, *size, *files[1].options]
        peers = [subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        rows = [json.loads(peer.communicate(timeout=PATIENCE)[0]) for peer in peers]
    assert [peer.returncode for peer in peers] == [0, 0]
    assert [row["bytes"] for row in rows] == [4096, 4096]


def test_a_standby_takes_the_run_up(authority):
    """Each master has a certificate of its own, and only the members know by which key the epoch was signed."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    first, second = addresses.split(",")
    with ExitStack() as stack:
        masters = [
            stack.enter_context(MasterNode(one, masters=addresses, **authority.issue("master").arguments))
            for one in (first, second)
        ]
        comms: list[Communicator] = []
        for _ in range(3):
            fresh = stack.enter_context(Communicator(addresses, **authority.issue("peer").arguments))
            admit(comms, fresh)
            comms.append(fresh)
        assert sums(comms) == [7, 7, 7]
        masters[0].detach()
        masters[0].close()
        on_all(comms, lambda comm, rank: comm.update_topology())
        assert sums(comms, tag=1) == [7, 7, 7]
        # Again, by a third master at the address of the first: the second has signed the epoch of now.
        stack.enter_context(MasterNode(first, masters=addresses, **authority.issue("master").arguments))
        masters[1].detach()
        masters[1].close()
        on_all(comms, lambda comm, rank: comm.update_topology())
        assert sums(comms, tag=2) == [7, 7, 7]


def test_two_authorities(tmp_path):
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(old.pem + new.pem)
    master, peer = old.issue("master"), new.issue("peer")
    with MasterNode(LOCAL, cert=master.cert, key=master.key, ca=bundle) as node:
        with Communicator(address_of(node), cert=peer.cert, key=peer.key, ca=bundle) as comm:
            comm.connect(timeout=PATIENCE)


# ---- renewal and expiry ----


def test_renewal_and_expiry(authority):
    """Expired certificates end no connection, and open none. Renewed ones are read without a restart."""
    until = datetime.now(UTC) + timedelta(seconds=SOON_SECONDS)
    with team(authority, 2, until) as (master, files, comms), ExitStack() as stack:
        late = stack.enter_context(
            Communicator(address_of(master), **(late_files := authority.issue("peer", until=until)).arguments)
        )
        assert sums(comms) == [3, 3]
        while datetime.now(UTC) <= until + timedelta(seconds=1):
            time.sleep(0.1)
        assert sums(comms, tag=1) == [3, 3]
        on_all(comms, lambda comm, rank: comm.update_topology())
        assert [comm.world_size for comm in comms] == [2, 2]
        # Neither a process that starts now, nor one that had read its certificate before.
        with pytest.raises(PCCLError, match=f"expired on {until:%Y-%m-%d}"):
            Communicator(address_of(master), **late_files.arguments)
        with pytest.raises(ConnectError, match=f"its certificate expired on {until:%Y-%m-%d}"):
            late.connect(1)
        authority.issue("master", renews=files)
        with pytest.raises(ConnectError, match="it refuses the certificate of this process: the certificate has expired"):
            late.connect(1)
        authority.issue("peer", renews=late_files)
        # The members renew theirs as well, before they take up links with the newcomer.
        for path in sorted(late_files.cert.parent.glob("CN=authority-*.crt")):
            if path not in (files.cert, late_files.cert):
                authority.issue("peer", renews=Files(path, path.with_suffix(".key"), files.ca))
        admit(comms, late)
        comms.append(late)
        assert sums(comms, tag=2) == [7, 7, 7]


def test_a_renewal_for_another_run_is_not_used(authority):
    """The master says so once, and works with the certificate that it had."""
    files = authority.issue("master")
    with master_process(files, *files.options) as (process, address):
        authority.issue("master", renews=files, run=f"{RUN}other/pccl/")
        for _ in range(3):
            with Communicator(address, **authority.issue("peer").arguments) as comm:
                comm.connect(timeout=PATIENCE)
        process.kill()
        assert process.stderr.read().count("has another run or fewer roles than the one that it replaces") == 1


# ---- what does not fit ----


def test_wrong_authority(tmp_path, authority):
    other = Authority(tmp_path, "other")
    stranger = other.issue("peer")
    files = authority.issue("master")
    with master_process(files, *files.options) as (process, address):
        mixed = {**stranger.arguments, "ca": authority.bundle}
        assert "it does not trust the authority that issued it" in refusal(Communicator(address, **mixed))
        assert "none of the authorities that this process trusts" in process.stderr.readline()
        assert "none of the authorities that this process trusts" in refusal(Communicator(address, **stranger.arguments))


def test_no_role(authority):
    """pccl itself refuses such a certificate when it starts; others do not."""
    nobody = authority.issue()
    with pytest.raises(PCCLError, match="has no role: issue one with a URI"):
        Communicator("127.0.0.1:1", **nobody.arguments)
    files = authority.issue("master")
    with master_process(files, *files.options) as (process, address):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(nobody.ca)
        context.load_cert_chain(nobody.cert, nobody.key)
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain, context.wrap_socket(plain) as stream:
            assert stream.version() == "TLSv1.3"
            with pytest.raises(ssl.SSLError, match="ALERT_HANDSHAKE_FAILURE"):
                stream.recv(1)
        assert re.search("refused 127.0.0.1:[0-9]+: its certificate has no role", process.stderr.readline())


def test_older_tls(authority):
    files = authority.issue("master")
    with master_process(files, *files.options) as (_, address):
        peer = authority.issue("peer")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(peer.ca)
        context.load_cert_chain(peer.cert, peer.key)
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain)


def test_the_other_role(authority):
    master, peer = authority.issue("master"), authority.issue("peer")
    with pytest.raises(PCCLError, match="a master needs one with a URI that ends in /pccl/master"):
        MasterNode(LOCAL, **peer.arguments)
    with pytest.raises(PCCLError, match="a peer needs one with a URI that ends in /pccl/peer"):
        Communicator("127.0.0.1:1", **master.arguments)


def test_keys_and_certificates_do_not_meet(authority, tmp_path):
    from pccl._run import keys as _keys

    _, keys = _keys.write_files(tmp_path / "run", _keys.new_keys())
    with MasterNode(LOCAL, **authority.issue("master").arguments) as master:
        assert "not of one run" in refusal(Communicator(address_of(master), keys=keys))
        assert "it encrypts, and this process has no keys" in refusal(Communicator(address_of(master)))


def test_files_that_do_not_serve(authority, tmp_path):
    files = authority.issue("peer")
    garbage = tmp_path / "garbage"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nabc\n")
    garbage.chmod(0o600)
    for name, message in (("cert", "certificate"), ("key", "key"), ("ca", "authorities")):
        with pytest.raises(PCCLError, match=f"cannot use the {message} in .*garbage: it holds no"):
            Communicator("127.0.0.1:1", **{**files.arguments, name: garbage})
    with pytest.raises(PCCLError, match="not the key of the certificate"):
        Communicator("127.0.0.1:1", **{**files.arguments, "key": authority.issue("peer").key})
    files.key.chmod(0o644)
    with pytest.raises(PCCLError, match=f"chmod 600 {files.key},"):
        Communicator("127.0.0.1:1", **files.arguments)
    files.key.unlink()
    with pytest.raises(PCCLError, match=r"cannot use the key in .*: No such file"):
        Communicator("127.0.0.1:1", **files.arguments)


def test_parts(authority, monkeypatch):
    """A certificate is three files, and excludes keys."""
    files = authority.issue("peer")
    with pytest.raises(ValueError, match="belong together: ca is missing"):
        Communicator("127.0.0.1:1", cert=files.cert, key=files.key)
    with pytest.raises(ValueError, match="exclude each other"):
        Communicator("127.0.0.1:1", keys="run.peer", **files.arguments)
    with pytest.raises(ValueError, match="belong together: cert and key are missing"):
        MasterNode(LOCAL, ca=files.ca)
    for name, path in files.arguments.items():
        monkeypatch.setenv(f"PCCL_{name.upper()}", str(path))
    monkeypatch.setenv("PCCL_KEYS", "run.peer")
    with Communicator("127.0.0.1:1") as comm, pytest.raises(PCCLError, match="PCCL_KEYS and PCCL_CERT exclude each other"):
        comm.connect(1)
    monkeypatch.delenv("PCCL_KEYS")
    monkeypatch.delenv("PCCL_KEY")
    with Communicator("127.0.0.1:1") as comm, pytest.raises(PCCLError, match="belong together: PCCL_KEY is not set"):
        comm.connect(1)


@pytest.mark.parametrize("options", [["--cert", "a"], ["--cert", "a", "--key", "b", "--ca", "c", "--keys", "d"]])
def test_options_that_do_not_fit(options):
    asked = [["top", "--once"], ["bench", "allreduce"]]
    for command in (["master", "--listen", LOCAL], *([*words, "--master", "127.0.0.1:1"] for words in asked)):
        done = subprocess.run(
            [sys.executable, "-m", "pccl", *command, *options], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 2
        assert "belong together" in done.stderr or "exclude each other" in done.stderr


def test_a_relative_path_behind_a_link(authority, tmp_path, monkeypatch):
    """As Kubernetes mounts a secret: a link of each file leads through one folder, which a renewal exchanges."""
    files = authority.issue("master")
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
    for path in (files.cert, files.key):
        path.rename(tmp_path / "1" / path.name)
    current, mounted = tmp_path / "..data", Files(tmp_path / "tls.crt", tmp_path / "tls.key", files.ca)
    current.symlink_to("1")
    mounted.cert.symlink_to(Path("..data") / files.cert.name)
    mounted.key.symlink_to(Path("..data") / files.key.name)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        options = [
            "--cert",
            "tls.crt",
            "--key",
            "tls.key",
            "--ca",
            os.path.relpath(files.ca),
            "--background",
            "--until-empty",
            "20",
        ]
        command = [sys.executable, "-m", "pccl", "master", "--listen", f"127.0.0.1:{free_ports(1)[0]}", *options]
        done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
        address = done.stdout.split()[-1]
        first = stack.enter_context(Communicator(address, **authority.issue("peer").arguments))
        first.connect(timeout=PATIENCE)
        # The renewed certificate is not trusted, so that its use shows.
        other = Authority(tmp_path, "other").issue("master")
        other.cert.rename(tmp_path / "2" / files.cert.name)
        other.key.rename(tmp_path / "2" / files.key.name)
        fresh = tmp_path / "..data_new"
        fresh.symlink_to("2")
        fresh.rename(current)
        text = refusal(Communicator(address, **authority.issue("peer").arguments))
        assert "none of the authorities that this process trusts" in text
