"""Train one candidate for the embedded suite and record its FP32 perplexity only."""

import torch

from flatminima.jobs import logged
from flatminima.model import prepare_backend
from flatminima.text.tokens import read_tokens
from flatminima.training.search import perplexity_curve


def main(*, train: str, validation: str, curve: str, settings: dict, candidate: dict) -> None:
    """Write step and NLL of one candidate at the evenly spaced steps."""
    torch.set_num_threads(1)
    prepare_backend()
    table = perplexity_curve(read_tokens(train), read_tokens(validation), settings, candidate)
    table.to_csv(curve, index=False)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        named = snakemake.wildcards
        main(
            train=snakemake.input.train,
            validation=snakemake.input.validation,
            curve=snakemake.output.curve,
            settings=snakemake.params.settings,
            candidate={
                "tokens": int(named.tokens),
                "lr": float(named.lr),
                "decay": float(named.decay),
            },
        )
