"""`python -m pccl.demo` is `pccl demo`."""

import sys

from pccl.demo import run_demo

sys.exit(run_demo(sys.argv[1:]))
