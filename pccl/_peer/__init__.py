"""A member of a run: its connection, membership, collectives and shared state."""
