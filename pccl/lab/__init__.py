"""What `pccl stress` and `pccl demo` are made of: runs of real processes on this machine, watched and judged by an orchestrator.

processes and nursery (forked children that are never left behind), link and reports (what they tell and are told), signals
(Ctrl-C), ports, events (the log of a run), folder (where its files go), display and plots.
"""
