"""Take a suite's tokenizer from the Hugging Face hub."""

from pathlib import Path

from workflow_scripts.lib.hub import download_tokenizer
from workflow_scripts.lib.logs import logged, say


def main(*, repo: str, tokenizer: str) -> None:
    """Write ``tokenizer.json``."""
    say(f"{repo} at commit {download_tokenizer(repo, Path(tokenizer))}")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(repo=snakemake.params.repo, tokenizer=snakemake.output.tokenizer)
