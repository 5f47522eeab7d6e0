"""Text, tokenizers and checkpoints from the Hugging Face hub, through its own libraries.

``HF_HUB_OFFLINE``, ``HF_HOME``, ``HF_ENDPOINT`` and ``HF_TOKEN`` work as they do there.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from workflow_scripts.lib.checkpoints import atomic_path


def stream_documents(repo: str, file: str) -> Iterator[str]:
    """Texts of a json lines file of a hub dataset, in order, without downloading it whole.

    The file is named, never a split: a missing one is an error and is not replaced.
    """
    from datasets import load_dataset

    rows = load_dataset("json", data_files=f"hf://datasets/{repo}/{file}", streaming=True)
    for row in rows["train"]:  # the name that datasets gives to files of no stated split
        yield row["text"]


def download_tokenizer(repo: str, output: Path) -> str:
    """Copy a hub model's ``tokenizer.json`` to ``output``; returns the commit it came from."""
    from huggingface_hub import hf_hub_download, model_info

    commit = model_info(repo).sha
    source = hf_hub_download(repo, "tokenizer.json", revision=commit)
    with atomic_path(output) as temporary:
        shutil.copyfile(source, temporary)
    return commit


def download_checkpoint(repo: str, revision: str, weights: Path, config: Path) -> str:
    """Write one revision's weights and configuration; returns the commit behind it.

    Weights that exist only as a pickled ``.bin`` are read with ``weights_only`` and
    written as safetensors, in the dtype they came in.
    """
    from huggingface_hub import hf_hub_download, model_info

    info = model_info(repo, revision=revision)
    names = {sibling.rfilename for sibling in info.siblings}
    with atomic_path(config) as temporary:
        shutil.copyfile(hf_hub_download(repo, "config.json", revision=info.sha), temporary)
    with atomic_path(weights) as temporary:
        if "model.safetensors" in names:
            source = hf_hub_download(repo, "model.safetensors", revision=info.sha)
            shutil.copyfile(source, temporary)
        elif "pytorch_model.bin" in names:
            source = hf_hub_download(repo, "pytorch_model.bin", revision=info.sha)
            _convert_pickle(Path(source), temporary)
        else:
            raise FileNotFoundError(
                f"{repo} at {revision} holds neither model.safetensors nor pytorch_model.bin"
            )
    return info.sha


def _convert_pickle(source: Path, output: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = torch.load(source, map_location="cpu", weights_only=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, output)
