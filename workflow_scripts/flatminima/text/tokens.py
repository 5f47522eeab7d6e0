"""Tokenizer training, and files of fixed token sequences."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from flatminima.errors import DamagedFile, UserError
from flatminima.files import atomic_path, file_sha256, refusals_named

END_OF_TEXT = "<|endoftext|>"
# What other families call it, where it is a special token of theirs.
OTHER_ENDS = ("<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>", "[EOS]")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE of ``vocab_size`` entries with ``<|endoftext|>`` as id 0, as GPT-NeoX.

    Raises ``ValueError`` where the 256 bytes and ``<|endoftext|>`` alone are more than that.
    """
    if vocab_size < 257:
        raise ValueError(f"vocab_size {vocab_size}: 257 or more (256 bytes and {END_OF_TEXT})")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_tokens(path: str | Path, tokens: np.ndarray) -> None:
    """Write ``[sequences, length]`` token ids as the tensor ``tokens`` of a safetensors file.

    Raises ``OSError`` where there is no room for it.
    """
    with atomic_path(path) as temporary, refusals_named(path):
        save_file({"tokens": np.ascontiguousarray(tokens)}, temporary)


def read_tokens(path: str | Path) -> np.ndarray:
    """Read the ``[sequences, length]`` token ids that ``write_tokens`` wrote.

    Raises ``DamagedFile`` where the file holds none, or where it is not the one that the
    manifest beside it (same name, ``.json``) is about.
    """
    path = Path(path)
    manifest = path.with_suffix(".json")
    if manifest.exists():
        recorded = json.loads(manifest.read_text(encoding="utf-8")).get("sha256")
        if recorded != file_sha256(path):
            raise DamagedFile(
                f"{path}: damaged or edited since it was written; its sha256 is not the one in "
                f"{manifest.name} beside it. Delete it, and the same command makes it again"
            )
    try:
        return load_file(path)["tokens"]
    except (SafetensorError, KeyError) as error:
        raise DamagedFile(f"{path}: holds no tokens: {error}") from error


def check_ids(tokens: np.ndarray, vocabulary: int, *, whose: str) -> None:
    """Raise ``UserError`` where a token id is not below the size of a vocabulary."""
    largest = int(tokens.max())
    if largest >= vocabulary:
        raise UserError(
            f"{whose} has {vocabulary} entries; the tokens hold id {largest}. They were made "
            "with another tokenizer"
        )


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """Id of the token that ends a text by the tokenizer's own file; ``None`` where none does."""
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    names = (END_OF_TEXT, *(name for name in OTHER_ENDS if name in special))
    return next((i for name in names if (i := tokenizer.token_to_id(name)) is not None), None)


def leading_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids that the tokenizer's file puts before a text, such as a ``<bos>``; mostly none."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    at = (n for n in range(len(whole)) if whole[n : n + len(plain)] == plain)
    return whole[: next(at, 0)]
