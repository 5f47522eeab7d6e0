"""Tokenizer training and fixed batches of tokens.

The batches are made once per suite and are the same file for every checkpoint,
fork and quantizer (section 3 and appendix A: "constructed once and reused").
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"


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


def encode_stream(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    """Token ids of each document followed by one end-of-text id; nothing else is inserted.

    A document that spells ``<|endoftext|>`` is encoded as those characters, so the id
    means the end of a document and nothing else. Documents are never cut or padded.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokenizer = Tokenizer.from_str(tokenizer.to_str())  # the caller's keeps its settings
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text in texts:
        yield [*tokenizer.encode(text, add_special_tokens=False).ids, end]


def pack(documents: Iterable[list[int]], *, sequences: int, length: int) -> np.ndarray:
    """Concatenate documents and cut them into ``[sequences, length]`` int32 token ids.

    Raises ``ValueError`` where the text is too short: batches are never padded.
    """
    needed = sequences * length
    ids: list[int] = []
    for document in documents:
        ids.extend(document)
        if len(ids) >= needed:
            return np.asarray(ids[:needed], dtype=np.int32).reshape(sequences, length)
    raise ValueError(
        f"the text holds {len(ids):,} tokens, {sequences} sequences of {length} need {needed:,}"
    )


def write_tokens(path: str | Path, tokens: np.ndarray) -> None:
    """Write ``[sequences, length]`` token ids as the tensor ``tokens`` of a safetensors file."""
    save_file({"tokens": np.ascontiguousarray(tokens)}, path)


def read_tokens(path: str | Path) -> np.ndarray:
    """Read the ``[sequences, length]`` token ids that ``write_tokens`` wrote."""
    return load_file(path)["tokens"]


def file_sha256(path: str | Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
