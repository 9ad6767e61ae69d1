"""`pccl stress --program`: copies of a program under faults, judged by what they print.

Pure: plan (which faults, and when) and verdict (what must hold). Processes: run (starts and harms copies) and proxy (cuts their
connections). program is the command line, also of the test of pccl itself, which is in bench/stress of a checkout.
"""
