"""Measure quantization noise and the loss's sensitivity to it at checkpoints."""

from flatminima.jobs import run
from flatminima.mechanism.sensitivity import LossSurface, sensitivity_table
from flatminima.mechanism.visits import at_each_checkpoint
from flatminima.quantizer_specs import read_spec

main = at_each_checkpoint(
    lambda visit, settings: sensitivity_table(
        LossSurface(visit, read_spec(settings["low_bit"]).layers), settings
    )
)

if __name__ == "__main__":
    run(main, snakemake)
