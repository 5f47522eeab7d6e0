"""Tokenizers, and files of fixed token sequences made from documents.

Batches are made once per suite. Every checkpoint, fork and quantizer reads the same file
(section 3 and appendix A of the paper: "constructed once and reused").
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
# Names of the same token in other families, if it is one of their special tokens.
OTHER_ENDS = ("<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>", "[EOS]")
# Characters per call of the tokenizer, which needs hundreds of bytes of memory per character.
PIECE = 1 << 20
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")
_CUT_ZONE = 1 << 12  # characters at the end of a piece, in which the cut between words is searched


# Tokenizers


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of ``vocab_size`` entries, with id 0 for ``<|endoftext|>``."""
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
    """The tokenizer of a ``tokenizer.json``. Raises ``UserError`` for other files."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path}: not a tokenizer.json ({error})") from error


def _special_tokens(tokenizer: Tokenizer) -> list[str]:
    added_tokens = tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in added_tokens if token.special]


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """Id of the tokenizer's end-of-text token; ``None`` if it has none."""
    special_tokens = _special_tokens(tokenizer)
    names = [END_OF_TEXT, *(name for name in OTHER_ENDS if name in special_tokens)]
    for name in names:
        token_id = tokenizer.token_to_id(name)
        if token_id is not None:
            return token_id
    return None


def leading_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids that the tokenizer puts before a text, such as that of ``<bos>``. Mostly none."""
    text_ids = tokenizer.encode("a", add_special_tokens=False).ids
    all_ids = tokenizer.encode("a").ids
    # The text's own ids begin somewhere in the list. All ids before them were added.
    for start in range(len(all_ids)):
        if all_ids[start : start + len(text_ids)] == text_ids:
            return all_ids[:start]
    return []


def encode_stream(
    tokenizer: Tokenizer, texts: Iterable[str], end: int | None, most: int | None = None
) -> Iterator[list[int]]:
    """Token ids of each document, followed by ``end`` unless that is ``None``.

    If a document contains the text of a special token, its characters are encoded, not the token.
    So the id of the end of a text occurs at the end of documents only. The tokenizer adds no
    tokens and does not cut or pad. Documents of more than ``PIECE`` characters are encoded in
    pieces, cut between two words. Encoding stops once a document has ``most`` ids.
    """
    # A copy, so that the caller's tokenizer keeps its settings.
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
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
        for gap in _BETWEEN_WORDS.finditer(text, stop - _CUT_ZONE, stop):
            stop = gap.start()  # the last gap remains
        yield text[start:stop]
        start = stop
    yield text[start:]


# Files of tokens


def write_tokens(path: str | Path, tokens: np.ndarray) -> None:
    """Write ``[sequences, length]`` token ids as the tensor ``tokens`` of a safetensors file.

    Raises ``OSError`` if the disk is full or read-only.
    """
    with atomic_path(path) as temporary, refusals_named(path):
        save_file({"tokens": np.ascontiguousarray(tokens)}, temporary)


def read_tokens(path: str | Path) -> np.ndarray:
    """Read the ``[sequences, length]`` token ids that ``write_tokens`` wrote.

    Raises ``DamagedFile`` if the file has no tokens, or another digest than the manifest beside
    it (same name, ``.json``) records.
    """
    manifest = Path(path).with_suffix(".json")
    if manifest.exists():
        check_digest(path, read_json(manifest).get("sha256", "none"), manifest.name)
    try:
        return load_file(path)["tokens"]
    except (SafetensorError, KeyError) as error:
        raise DamagedFile(f"{path}: contains no tokens: {error}") from error


def check_ids(tokens: np.ndarray, vocabulary: int, *, whose: str) -> None:
    """Raise ``UserError`` unless every token id is below the size of a vocabulary."""
    largest = int(tokens.max())
    if largest >= vocabulary:
        raise UserError(
            f"{whose} has {vocabulary} entries, but the tokens contain id {largest}: they were "
            "made with another tokenizer"
        )


def pack(
    documents: Iterable[list[int]], *, sequences: int, length: int, document_start: bool = False
) -> np.ndarray:
    """Cut documents into ``[sequences, length]`` int32 token ids, in order.

    By default documents are joined and cut. With ``document_start`` each sequence is the start of
    one document, and shorter documents are left out. Batches are never padded: ``UserError`` if
    the text is too short.
    """
    n_tokens = sequences * length
    if document_start:
        documents = (ids[:length] for ids in documents if len(ids) >= length)
    # Reads documents one by one and stops at the last token that is needed.
    tokens = np.fromiter(islice(chain.from_iterable(documents), n_tokens), dtype=np.int32)
    if len(tokens) == n_tokens:
        return tokens.reshape(sequences, length)
    available = f"{len(tokens):,} tokens"
    needed = f"{n_tokens:,}"
    if document_start:
        available = f"{len(tokens) // length:,} documents of at least {length} tokens"
        needed = f"{sequences:,} documents"
    raise UserError(f"the text has {available}; {sequences} sequences of {length} need {needed}")


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
    """Encode texts with ``encode_stream`` and cut them with ``pack``; reads no more than needed.

    If the tokenizer puts tokens before a text (``<bos>``), every sequence begins with them.
    Documents of more than ``longest_document`` tokens, without their end, are left out.
    """
    first_ids = leading_ids(tokenizer)
    text_length = length - len(first_ids)
    if text_length < 2:
        raise UserError(
            f"length {length} leaves {text_length} tokens after the {len(first_ids)} with which "
            f"the tokenizer begins a text; valid: {len(first_ids) + 2} or more"
        )
    # Ids that are needed of one document: to fill the batches, or to see that it is too long.
    most = text_length if document_start else sequences * text_length
    if longest_document is not None:
        most = max(most, longest_document + 1)
    documents = encode_stream(tokenizer, texts, end, most)
    if longest_document is not None:
        longest = longest_document + (end is not None)
        documents = (ids for ids in documents if len(ids) <= longest)
    tokens = pack(documents, sequences=sequences, length=text_length, document_start=document_start)
    # Every index is 0: all ids are put before the first column, in their order.
    return np.insert(tokens, [0] * len(first_ids), first_ids, axis=1)


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
    """Write a split's token file and return its record. Keywords are named as in the configuration.

    ``name`` is the file of the texts, for messages. ``cut`` goes to ``fixed_batches``. Raises
    ``UserError`` if the texts are too short, an id is outside a vocabulary, or the digest of the
    token file is not ``sha256``.
    """
    tokenizer = read_tokenizer(tokenizer_file)
    end = tokenizer.token_to_id(end_token) if end_of_text else None
    if end_of_text and end is None:
        raise UserError(
            f"{name}: the tokenizer has no {end_token}; set tokenizer.end_of_text to one of its "
            f"tokens (special tokens: {', '.join(_special_tokens(tokenizer)) or 'none'}), or set "
            "end_of_text of both batches to false"
        )
    try:
        tokens = fixed_batches(tokenizer, texts, end, **cut)
        if model_vocabulary is not None:  # the model may have more entries than the tokenizer
            check_ids(tokens, model_vocabulary, whose="the model (architecture.vocab_size)")
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    write_tokens(tokens_file, tokens)
    digest = file_sha256(tokens_file)
    if sha256 is not None and digest != sha256:
        # A file with another digest than configured must not be used by anybody.
        Path(tokens_file).unlink()
        raise UserError(f"{tokens_file}: its sha256 is {digest}, not {sha256} as configured")
    record = {
        "sequences": cut["sequences"],
        "length": cut["length"],
        "end_of_text": end_token if end_of_text else None,
    }
    first_ids = leading_ids(tokenizer)
    if first_ids:
        record["begins_with"] = [tokenizer.id_to_token(token_id) for token_id in first_ids]
    return {
        **record,
        "document_start": cut.get("document_start", False),
        "longest_document": cut.get("longest_document"),
        "largest_id": int(tokens.max()),
        "vocab_size": tokenizer.get_vocab_size(),
        "model_vocabulary": model_vocabulary,
        "sha256": digest,
        "tokenizer_sha256": file_sha256(tokenizer_file),
    }
