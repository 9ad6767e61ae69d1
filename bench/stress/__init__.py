"""`pccl stress` without --program: pccl itself under a seeded schedule of faults, judged by what its sums contain.

Pure: schedule (what is done, and when), workload (what peers do), content and gradient (buffers whose sums tell who is in
them), judge (what must hold), reports (what peers tell). Processes: worker (a peer, or a master; actor and buffers are its
parts), trainer (a peer that trains by pccl.diloco) and conductor (the orchestrator), on stress.lab. backends says what else can
reduce. display shows a run; command and options are the command line.
"""
