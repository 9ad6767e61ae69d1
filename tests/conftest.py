"""What all tests share."""

import os
import shutil
import signal
import tempfile
import threading

import pytest
from hypothesis import HealthCheck, settings

# What a shell starts in the background ignores SIGINT, and so do its children: the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is up to the machine.
settings.register_profile("pccl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pccl")


def pytest_configure(config):
    """With TEST_KEYS=1 all processes of the tests have keys: those of masters, for many are a master and a peer in one."""
    if os.environ.get("TEST_KEYS", "0") == "0":
        return
    from pccl._run import keys

    folder = tempfile.mkdtemp(prefix="pccl-test-keys-")
    config.add_cleanup(lambda: shutil.rmtree(folder))
    os.environ["PCCL_KEYS"] = str(keys.write_files(os.path.join(folder, "run"), keys.new_keys())[0])


def pytest_collection_modifyitems(items):
    if os.environ.get("TEST_KEYS", "0") == "0":
        return
    for item in items:
        if (plain := item.get_closest_marker("plain")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"without keys only: {plain.args[0]}"))
