"""Intervals, tests, and the phases of a training run."""
