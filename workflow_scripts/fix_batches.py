"""Fix the validation batches and the training stream of a suite, once for everything."""

from flatminima.files import read_json, write_json
from flatminima.jobs import log, logged
from flatminima.text.batches import fix_split, overlap


def main(
    *, texts: dict, tokenizer: str, manifest: str, batches: dict, vocabulary: dict, outputs: dict
) -> None:
    """Write one token file and one manifest per split.

    ``texts`` maps splits to documents, ``batches`` to how they are cut, and ``outputs`` to
    the two files; ``vocabulary`` names the end of text and the size of the model's. Raises
    ``UserError`` where a validation document occurs in training.
    """
    shared, source = overlap(texts["train"], texts["validation"]), read_json(manifest)
    for split, (tokens_file, manifest_file) in outputs.items():
        record = fix_split(tokenizer, texts[split], tokens_file, **batches[split], **vocabulary)
        write_json(manifest_file, {"split": split, **record, **shared, "text": source})
        log(f"{split}: {record['sequences']} sequences of {record['length']} tokens")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        splits = list(snakemake.params.batches)
        main(
            texts={s: snakemake.input[f"{s}_text"] for s in ("validation", "train")},
            tokenizer=snakemake.input.tokenizer,
            manifest=snakemake.input.manifest,
            batches=snakemake.params.batches,
            vocabulary=snakemake.params.vocabulary,
            outputs={s: (snakemake.output[s], snakemake.output[f"{s}_manifest"]) for s in splits},
        )
