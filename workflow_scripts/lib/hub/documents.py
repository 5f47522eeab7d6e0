"""Text from json lines files of hub datasets."""

from collections.abc import Iterator


def stream_documents(repo: str, file: str) -> Iterator[str]:
    """Texts of a json lines file of a hub dataset, in order, without downloading it whole.

    The file is named, never a split: a missing one is an error and is not replaced.
    """
    import datasets

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # no request beside those for the data
    files = f"hf://datasets/{repo}/{file}"
    rows = datasets.load_dataset("json", data_files=files, streaming=True)
    for row in rows["train"]:  # the name that datasets gives to files of no stated split
        yield row["text"]
