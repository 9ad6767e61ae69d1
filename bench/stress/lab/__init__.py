"""Runs of real processes on this machine, watched and judged by an orchestrator.

processes and nursery (forked children that are never left behind), link and reports (what they tell and are told), signals
(Ctrl-C), events (the log of a run), display and plots.
"""
