"""Take a suite's tokenizer from the Hugging Face hub."""

from pathlib import Path

from flatminima.files import file_sha256, write_json
from flatminima.hub.tokenizers import download_tokenizer
from flatminima.jobs import log, logged


def main(*, repo: str, revision: str, tokenizer: str, record: str) -> None:
    """Write ``tokenizer.json``, and a record of the commit it came from."""
    commit = download_tokenizer(repo, revision, Path(tokenizer))
    origin = {"repo": repo, "revision": revision, "commit": commit}
    write_json(record, origin | {"sha256": file_sha256(tokenizer)})
    log(f"{repo} {revision} is commit {commit}")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            **snakemake.params.source,
            tokenizer=snakemake.output.tokenizer,
            record=snakemake.output.record,
        )
