"""What every job needs around its work: logs, locks, GPUs, the hash of its code."""
