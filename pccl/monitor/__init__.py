"""What `pccl web` and `pccl replay` show: the history of a run, as its master tells it (docs/monitoring.md)."""
