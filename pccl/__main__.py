"""`python -m pccl` is the `pccl` command."""

from pccl.cli import main

main(prog_name="pccl")
