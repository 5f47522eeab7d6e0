"""Fix the validation batches and the training stream of a suite, once for everything."""

from tokenizers import Tokenizer

from workflow_scripts.lib.logs import logged, say
from workflow_scripts.lib.provenance import read_json, write_json
from workflow_scripts.lib.text import read_documents, shared_documents
from workflow_scripts.lib.tokens import encode_stream, file_sha256, pack, write_tokens


def main(*, texts: dict, tokenizer: str, manifest: str, batches: dict, outputs: dict) -> None:
    """Write one token file and one manifest per split.

    ``texts`` maps splits to documents, ``batches`` to sequences and length, and
    ``outputs`` to the two files. Raises ``ValueError`` where a validation document
    occurs in training.
    """
    shared = shared_documents(read_documents(texts["train"]), read_documents(texts["validation"]))
    if shared:
        raise ValueError(f"{texts['train']}: {shared} validation documents occur in training")
    encoder = Tokenizer.from_file(tokenizer)
    for split, (tokens_file, manifest_file) in outputs.items():
        tokens = pack(encode_stream(encoder, read_documents(texts[split])), **batches[split])
        write_tokens(tokens_file, tokens)
        record = {"split": split, **batches[split], "documents_shared_with_training": 0}
        record |= {"largest_id": int(tokens.max()), "vocab_size": encoder.get_vocab_size()}
        record |= {"sha256": file_sha256(tokens_file), "tokenizer_sha256": file_sha256(tokenizer)}
        write_json(manifest_file, record | {"text": read_json(manifest)})
        say(f"{split}: {len(tokens)} sequences of {tokens.shape[1]} tokens")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        splits = list(snakemake.params.batches)
        main(
            texts={s: snakemake.input[f"{s}_text"] for s in ("validation", "train")},
            tokenizer=snakemake.input.tokenizer,
            manifest=snakemake.input.manifest,
            batches=snakemake.params.batches,
            outputs={s: (snakemake.output[s], snakemake.output[f"{s}_manifest"]) for s in splits},
        )
