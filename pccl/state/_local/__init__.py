"""States of one process: trees, objects, modules, checkpoints, terms. Nothing here needs a communicator."""
