"""`python -m pccl.cli` is the `pccl` command."""

from pccl.cli import main

main(prog_name="pccl")
