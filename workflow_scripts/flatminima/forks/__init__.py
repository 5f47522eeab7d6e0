"""Forks: training that leaves a run at a checkpoint, and what is told of it (section 5)."""
