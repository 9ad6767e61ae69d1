"""What a run needs beside its members: masters, keys, relays, and a supervisor."""
