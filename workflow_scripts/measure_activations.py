"""Measure activation kurtosis, the cost of rounding activations, and anisotropy."""

from flatminima.jobs import run
from flatminima.mechanism.activations import activation_table
from flatminima.mechanism.visits import at_each_checkpoint

main = at_each_checkpoint(activation_table)

if __name__ == "__main__":
    run(main, snakemake)
