"""Train the byte-level BPE tokenizer of a suite on its training documents."""

from flatminima.jobs import log, logged
from flatminima.text.documents import read_documents
from flatminima.text.tokens import train_tokenizer


def main(*, train: str, vocab_size: int, tokenizer: str) -> None:
    """Write ``tokenizer.json``."""
    trained = train_tokenizer(read_documents(train), vocab_size)
    trained.save(tokenizer)
    log(f"{trained.get_vocab_size()} entries")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            train=snakemake.input.train,
            vocab_size=snakemake.params.vocab_size,
            tokenizer=snakemake.output.tokenizer,
        )
