"""`python -m pccl` is the `pccl` command."""

from pccl_command import main

main()
