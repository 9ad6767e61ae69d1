"""What this machine gives: files, processes, waits, memory that outlives a process. Needs no compiled library."""
