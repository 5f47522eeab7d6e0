"""Tokenizers, and documents as files of fixed token sequences.

The batches are made once per suite and are the same file for every checkpoint, fork and
quantizer (section 3 and appendix A: "constructed once and reused").
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from flatminima.errors import DamagedFile, UserError
from flatminima.files import atomic_path, check_digest, file_sha256, read_json, refusals_named

END_OF_TEXT = "<|endoftext|>"
# What other families call it, where it is a special token of theirs.
OTHER_ENDS = ("<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>", "[EOS]")
# Characters that are encoded at once: the memory that takes is hundreds of times as much.
PIECE = 1 << 20
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")
_NEAR = 1 << 12  # characters before the end of a piece, among which it is cut between words


# Tokenizers


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE of ``vocab_size`` entries with ``<|endoftext|>`` as id 0, as GPT-NeoX."""
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


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``; ``UserError`` where that is none."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # what tokenizers raises is a bare Exception
        raise UserError(f"{path}: is no tokenizer.json ({error})") from error


def _special_tokens(tokenizer: Tokenizer) -> list[str]:
    return [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """Id of the token that ends a text by the tokenizer's own file; ``None`` where none does."""
    special = _special_tokens(tokenizer)
    names = (END_OF_TEXT, *(name for name in OTHER_ENDS if name in special))
    return next((i for name in names if (i := tokenizer.token_to_id(name)) is not None), None)


def leading_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids that the tokenizer's file puts before a text, such as a ``<bos>``; mostly none."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    at = (n for n in range(len(whole)) if whole[n : n + len(plain)] == plain)
    return whole[: next(at, 0)]


def encode_stream(
    tokenizer: Tokenizer, texts: Iterable[str], end: int | None, most: int | None = None
) -> Iterator[list[int]]:
    """Token ids of each document, followed by ``end`` unless that is ``None``; no other token.

    A document that spells a special token is encoded as those characters, so that the id means
    the end of a document and nothing else; what the tokenizer's file says of tokens around a
    text, cutting or padding is not done. A document of more than ``PIECE`` characters is encoded
    in pieces, cut between two words, and no further than until it has ``most`` ids.
    """
    tokenizer = Tokenizer.from_str(tokenizer.to_str())  # the caller's keeps its settings
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text in texts:
        ids: list[int] = []
        for piece in _pieces(text):
            ids += tokenizer.encode(piece, add_special_tokens=False).ids
            if most is not None and len(ids) >= most:
                break
        yield ids if end is None else [*ids, end]


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE:
        stop = start + PIECE
        for found in _BETWEEN_WORDS.finditer(text, stop - _NEAR, stop):
            stop = found.start()  # the last of them
        yield text[start:stop]
        start = stop
    yield text[start:]


# Files of tokens


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
    manifest = Path(path).with_suffix(".json")
    if manifest.exists():
        check_digest(path, read_json(manifest).get("sha256", "none"), manifest.name)
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


def pack(
    documents: Iterable[list[int]], *, sequences: int, length: int, document_start: bool = False
) -> np.ndarray:
    """Cut documents into ``[sequences, length]`` int32 token ids, in order.

    By default they are concatenated and cut. With ``document_start`` each sequence is the
    start of one document; shorter documents are left out. Raises ``UserError`` where the
    text is too short: batches are never padded.
    """
    wanted = sequences * length
    if document_start:
        documents = (ids[:length] for ids in documents if len(ids) >= length)
    tokens = np.fromiter(islice(chain.from_iterable(documents), wanted), dtype=np.int32)
    if len(tokens) == wanted:
        return tokens.reshape(sequences, length)
    held, needed = f"{len(tokens):,} tokens", f"{wanted:,}"
    if document_start:
        held = f"{len(tokens) // length:,} documents of at least {length} tokens"
        needed = f"{sequences:,} documents"
    raise UserError(f"the text holds {held}, {sequences} sequences of {length} need {needed}")


def fixed_batches(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    end: int | None,
    *,
    sequences: int,
    length: int,
    document_start: bool = False,
    longest_document: int | None = None,
) -> np.ndarray:
    """``pack`` of what ``encode_stream`` gives of the texts, no more of them than it takes.

    Where the tokenizer begins a text with tokens of its own (``<bos>``), so does every sequence.
    Documents of more than ``longest_document`` tokens, the end not counted, are left out.
    """
    before = leading_ids(tokenizer)
    own = length - len(before)
    if own < 2:
        raise UserError(f"length {length}: 2 tokens or more after {len(before)}")
    most = max(own if document_start else sequences * own, (longest_document or 0) + 1)
    documents = encode_stream(tokenizer, texts, end, most)
    if longest_document is not None:
        kept = longest_document + (end is not None)
        documents = (ids for ids in documents if len(ids) <= kept)
    tokens = pack(documents, sequences=sequences, length=own, document_start=document_start)
    return np.insert(tokens, [0] * len(before), before, axis=1)


def fix_split(
    tokenizer_file: str | Path,
    texts: Iterable[str],
    tokens_file: str | Path,
    *,
    name: str | Path,
    end_of_text: bool = True,
    sha256: str | None = None,
    end_token: str = END_OF_TEXT,
    model_vocabulary: int | None = None,
    **cut: int | bool,
) -> dict:
    """Write a split's token file and return its record; the keywords are the configuration's.

    ``cut`` goes to ``fixed_batches``; ``name`` is the file of the texts. Raises ``UserError``
    with it where they are too short, an id is outside of a vocabulary, or the token file is
    not the one that ``sha256`` names.
    """
    tokenizer = read_tokenizer(tokenizer_file)
    end = tokenizer.token_to_id(end_token) if end_of_text else None
    if end_of_text and end is None:
        raise UserError(
            f"{name}: the tokenizer has no {end_token}; set tokenizer.end_of_text to a token that "
            f"it has (special ones: {', '.join(_special_tokens(tokenizer)) or 'none'}), or "
            "end_of_text of both batches to false"
        )
    try:
        tokens = fixed_batches(tokenizer, texts, end, **cut)
        if model_vocabulary is not None:  # may be more than the tokenizer's (Pythia's is)
            check_ids(tokens, model_vocabulary, whose="the model (architecture.vocab_size)")
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    write_tokens(tokens_file, tokens)
    digest = file_sha256(tokens_file)
    if sha256 is not None and digest != sha256:
        Path(tokens_file).unlink()
        raise UserError(f"{tokens_file}: its sha256 is {digest}, not {sha256} as configured")
    begins = [tokenizer.id_to_token(i) for i in leading_ids(tokenizer)]
    return {
        "sequences": cut["sequences"],
        "length": cut["length"],
        "end_of_text": end_token if end_of_text else None,
        **({"begins_with": begins} if begins else {}),
        "document_start": cut.get("document_start", False),
        "longest_document": cut.get("longest_document"),
        "largest_id": int(tokens.max()),
        "vocab_size": tokenizer.get_vocab_size(),
        "model_vocabulary": model_vocabulary,
        "sha256": digest,
        "tokenizer_sha256": file_sha256(tokenizer_file),
    }
