"""What tools/try_wheels.py runs in each system: imports the wheel beside this file's environment, and reduces with keys.

Python's own TLS works before, beside and after pccl's, although the two have different versions of OpenSSL. Prints one line.
"""

import os
import platform
import sys
import sysconfig
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor


def handshake() -> str:
    """Returns Python's OpenSSL after a handshake by it, or why there is none."""
    try:
        import ssl
    except ImportError:
        return "no OpenSSL in Python"
    contexts = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("aNULL:@SECLEVEL=0")  # without certificates
        contexts.append(context)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [contexts[0].wrap_bio(there, back, server_side=True), contexts[1].wrap_bio(back, there)]
    shaking = list(ends)
    while shaking:
        for end in list(shaking):
            try:
                end.do_handshake()
                shaking.remove(end)
            except ssl.SSLWantReadError:
                pass
    ends[1].write(b"pccl")
    assert ends[0].read() == b"pccl"
    return ssl.OPENSSL_VERSION


def reduce_with_keys(folder: str) -> str:
    """Two peers and a master, all of whose connections are encrypted; returns the result."""
    import numpy as np

    import pccl
    from pccl._run.keys import new_keys, write_files

    master_keys, peer_keys = write_files(os.path.join(folder, "run"), new_keys())

    def peer(number: int) -> list[float]:
        with pccl.Communicator(f"127.0.0.1:{master.port}", keys=peer_keys) as comm:
            comm.connect()
            comm.wait_for_peers(2)
            vector = np.full(1 << 16, number, np.float32)
            comm.all_reduce(vector, op="avg")
            state = np.full(1 << 16, number, np.float32)
            comm.are_peers_pending()
            assert (vector == 2.5).all(), vector
            return [float(vector[0]), float(state[0])]

    with pccl.MasterNode("127.0.0.1:0", keys=master_keys) as master, ThreadPoolExecutor() as threads:
        first, second = threads.map(peer, (1, 4))
    assert (first, second) == ([2.5, 1.0], [2.5, 4.0])
    return f"2 peers with keys average to {first[0]}"


def hostile_handshake() -> str:
    """Returns what Python's TLS makes of an openssl.cnf without ciphers."""
    try:
        handshake()
    except OSError as error:  # what ssl.SSLError is
        return f"Python's TLS fails: {error.args[-1]}"
    return "no OpenSSL in Python"


def main() -> None:
    """Prints the system, the two versions of OpenSSL and the result."""
    threading.stack_size(1 << 20)  # Alpine's Python gives its own threads this much
    hostile = "OPENSSL_CONF" in os.environ
    before = "" if hostile else handshake()
    from pccl.cli.info import _facts

    facts = _facts()
    assert facts["encryption"] == "yes", facts
    assert facts["LZ4"] == "yes", facts
    level, kernels = facts["instruction set"], facts["CUDA kernels"]
    with open("/proc/cpuinfo") as cpuinfo:
        assert level != "portable" or "avx2" not in cpuinfo.read().split(), "the processor has AVX2, which is not used"
    with tempfile.TemporaryDirectory() as folder:
        result = reduce_with_keys(folder)
    after = hostile_handshake() if hostile else handshake()
    assert hostile or before == after
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert not free_threaded or not sys._is_gil_enabled(), "pccl has turned the GIL on"  # type: ignore[attr-defined]
    libc = " ".join(platform.libc_ver()) if platform.libc_ver()[1] else "musl"
    version = platform.python_version() + "t" * free_threaded
    print(f"{platform.machine()}, {libc}, Python {version}, {level}, GPU kernels {kernels}; {after}; {result}")


if __name__ == "__main__":
    main()
