"""`python -m pccl.cli` is `pccl`."""

from pccl_command import main

main()
