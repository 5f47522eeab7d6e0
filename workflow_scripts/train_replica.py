"""Train one small run of another width or seed and probe it on the way."""

from flatminima.files import write_table
from flatminima.intervals import summarise
from flatminima.jobs import logged
from flatminima.mechanism.replication import run_scores
from flatminima.scoring import Prober
from flatminima.text.tokens import read_tokens


def main(*, suite: str, width: int, seed: int, train: str, validation: str, settings: dict,
         probe: dict, threads: int, table: str, sequences: str) -> None:  # fmt: skip
    """Write a row per probe and quantizer, and the scores of each sequence."""
    prober = Prober(validation, probe, threads)
    prober.tokens = prober.tokens[: probe["sequences"]]
    tokens = read_tokens(train)[: settings["train_sequences"]]
    run = {key: value for key, value in settings.items() if key != "train_sequences"}
    scores = run_scores(tokens, prober, seed=seed, **run)
    found = summarise(scores, ["step"], resamples=probe["resamples"], seed=0)
    for place, (name, value) in enumerate({"suite": suite, "width": width, "seed": seed}.items()):
        found.insert(place, name, value)
    write_table(table, found)
    write_table(sequences, scores)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            suite=snakemake.wildcards.suite,
            width=int(snakemake.wildcards.width),
            seed=int(snakemake.wildcards.seed),
            train=snakemake.input.train,
            validation=snakemake.input.validation,
            settings=snakemake.params.settings,
            probe=snakemake.params.probe,
            threads=snakemake.threads,
            table=snakemake.output.table,
            sequences=snakemake.output.sequences,
        )
