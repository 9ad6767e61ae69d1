"""What a shell starts in the background ignores SIGINT, and so do its children: the tests of Ctrl-C would wait for ever."""

import signal
import threading

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
