"""Probe checkpoints with one matrix quantized alone, and with all but one."""

from flatminima.jobs import run
from flatminima.mechanism.variants import probe_layers
from flatminima.mechanism.visits import at_each_checkpoint

main = at_each_checkpoint(probe_layers)

if __name__ == "__main__":
    run(main, snakemake)
