"""What tells about a run: reports and findings, the flight recorder, spans, stacks, links."""
