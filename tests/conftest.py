"""What all tests share."""

import signal
import threading

from hypothesis import HealthCheck, settings

# What a shell starts in the background ignores SIGINT, and so do its children: the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is up to the machine.
settings.register_profile("pccl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pccl")
