"""Collect the training and validation documents of a suite."""

from flatminima.files import write_json
from flatminima.jobs import log, logged
from flatminima.text.collecting import collect


def main(*, source: dict, train: str, validation: str, manifest: str) -> None:
    """Write one json lines file per split and a manifest of where they came from."""
    taken = collect(source, train, validation)
    write_json(manifest, taken)
    log(
        f"{taken['train_documents']} training, {taken['validation_documents']} validation documents"
    )


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            source=snakemake.params.source,
            train=snakemake.output.train,
            validation=snakemake.output.validation,
            manifest=snakemake.output.manifest,
        )
