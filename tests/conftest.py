"""What all tests share."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading

import pytest
from hypothesis import HealthCheck, settings

# What a shell starts in the background ignores SIGINT, and so do its children: the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is up to the machine.
settings.register_profile("pccl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("pccl"), max_examples=15)
settings.load_profile("pccl")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out what starts a process or takes seconds (`make quick`)")


def pytest_configure(config):
    """With TEST_KEYS=1 all processes of the tests have keys: those of masters, for many are a master and a peer in one."""
    if config.option.quick:
        settings.load_profile("quick")
    if os.environ.get("TEST_KEYS", "0") == "0":
        return
    from pccl._run import keys

    folder = tempfile.mkdtemp(prefix="pccl-test-keys-")
    config.add_cleanup(lambda: shutil.rmtree(folder))
    os.environ["PCCL_KEYS"] = str(keys.write_files(os.path.join(folder, "run"), keys.new_keys())[0])


@pytest.fixture(autouse=True)
def _no_processes(request):
    """With --quick, ends a test that starts a process."""
    if request.config.option.quick:
        monkeypatch = request.getfixturevalue("monkeypatch")
        monkeypatch.setattr(subprocess.Popen, "__init__", lambda *_, **__: pytest.skip("starts a process"))
        monkeypatch.setattr(os, "fork", lambda: pytest.skip("starts a process"))


def pytest_collection_modifyitems(config, items):
    for item in items:
        if config.option.quick and item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="takes seconds"))
    if os.environ.get("TEST_KEYS", "0") == "0":
        return
    for item in items:
        if (plain := item.get_closest_marker("plain")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"without keys only: {plain.args[0]}"))
