"""`pccl stress`: a run of real processes to which a seeded schedule of faults is done, judged by what its sums contain.

Pure: schedule (what is done, and when), workload (what peers do), content (buffers whose sums tell who is in them), judge (what
must hold), reports, events (the log, and comparing two of them). Processes: nursery (forks them), worker (a peer), master,
processes and conductor (the orchestrator). display and summary show it; command is the command line.
"""
