"""`python -m pccl.demo` is `pccl demo`."""

from pccl.demo import command

command(prog_name="pccl demo")
