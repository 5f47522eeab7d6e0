"""Measure the largest eigenvalue and the trace of the Hessian at checkpoints."""

from flatminima.jobs import run
from flatminima.mechanism.sensitivity import LossSurface, curvature_table
from flatminima.mechanism.visits import at_each_checkpoint

main = at_each_checkpoint(
    lambda visit, settings: curvature_table(LossSurface(visit, settings["layers"]), settings)
)

if __name__ == "__main__":
    run(main, snakemake)
