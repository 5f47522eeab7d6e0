"""Measure the largest eigenvalue and the trace of the Hessian at checkpoints."""

from flatminima.jobs import run
from flatminima.mechanism.sensitivity import LossSurface, curvature_row
from flatminima.mechanism.visits import at_each_checkpoint

main = at_each_checkpoint(
    lambda visit, settings: curvature_row(LossSurface(visit, settings["layers"]), settings)
)

if __name__ == "__main__":
    run(main, snakemake)
