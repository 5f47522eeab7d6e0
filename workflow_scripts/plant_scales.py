"""Write another suite's checkpoints with channels scaled, so that no output of a model changes."""

import torch

from flatminima.equalization import Channels, free_channels, rescale
from flatminima.jobs import progress, run
from flatminima.model import load_model, save_model


def main(sources: dict, folders: dict, scales: dict, channels: int) -> None:
    """Write one checkpoint into ``folders`` for each in ``sources``, all by step.

    The first ``channels`` channels behind each normalization are multiplied by ``scales[step]``,
    and its gain and bias are divided by it.
    """
    for step, source in progress(sources.items(), "checkpoints", total=len(sources)):
        model = load_model(source)
        planted = [
            (free, first_scaled(free, channels, scales[step]))
            for free in free_channels(model)
            if not free.is_of_values
        ]
        rescale(model, planted)
        save_model(model, folders[step], digests=True)


def first_scaled(free: Channels, count: int, scale: float) -> torch.Tensor:
    """Scales of all channels: ``scale`` for the first ``count``, 1 for the others."""
    factors = torch.ones(free.count, dtype=torch.float64)
    factors[:count] = scale
    return factors


if __name__ == "__main__":
    run(main, snakemake)
