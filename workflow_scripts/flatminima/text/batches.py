"""Documents to fixed batches of tokens, and the record of what they hold.

The batches are made once per suite and are the same file for every checkpoint,
fork and quantizer (section 3 and appendix A: "constructed once and reused").
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from flatminima.errors import UserError
from flatminima.files import file_sha256
from flatminima.text.tokens import END_OF_TEXT, check_ids, leading_ids, write_tokens

# Characters that are encoded at once: the memory that takes is hundreds of times as much.
PIECE = 1 << 20
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")
_NEAR = 1 << 12  # characters before the end of a piece, among which it is cut between words


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``; ``UserError`` where that is none."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # what tokenizers raises is a bare Exception
        raise UserError(f"{path}: is no tokenizer.json ({error})") from error


def end_of_text_id(tokenizer: Tokenizer, token: str = END_OF_TEXT) -> int:
    """Id of the token between documents; one line with what there is where it is not there."""
    found = tokenizer.token_to_id(token)
    if found is None:
        special = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
        raise UserError(
            f"the tokenizer has no {token}; set tokenizer.end_of_text to a token that it has "
            f"(special ones: {', '.join(special) or 'none'}), or end_of_text of both batches to "
            "false"
        )
    return found


def encode_stream(
    tokenizer: Tokenizer, texts: Iterable[str], end: int | None, most: int | None = None
) -> Iterator[list[int]]:
    """Token ids of each document, followed by ``end`` unless that is ``None``; no other token.

    A document that spells a special token is encoded as those characters, so that the id
    means the end of a document and nothing else. Nothing that the tokenizer's file says of
    tokens around a text, cutting or padding is done. A document of more than ``PIECE``
    characters is encoded in pieces, cut between two words where there are any, and no
    further than until it has ``most`` ids.
    """
    tokenizer = Tokenizer.from_str(tokenizer.to_str())  # the caller's keeps its settings
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    after = [] if end is None else [end]
    for text in texts:
        ids: list[int] = []
        for piece in _pieces(text):
            ids += tokenizer.encode(piece, add_special_tokens=False).ids
            if most is not None and len(ids) >= most:
                break
        yield ids + after


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE:
        stop = start + PIECE
        cuts = [found.start() for found in _BETWEEN_WORDS.finditer(text, stop - _NEAR, stop)]
        stop = cuts[-1] if cuts else stop
        yield text[start:stop]
        start = stop
    yield text[start:]


def pack(
    documents: Iterable[list[int]], *, sequences: int, length: int, document_start: bool = False
) -> np.ndarray:
    """Cut documents into ``[sequences, length]`` int32 token ids, in order.

    By default they are concatenated and cut. With ``document_start`` each sequence is the
    start of one document; shorter documents are left out. Raises ``UserError`` where the
    text is too short: batches are never padded.
    """
    tokens = np.empty(sequences * length, dtype=np.int32)
    filled = 0
    for document in documents:
        if document_start and len(document) < length:
            continue
        taken = document[: length if document_start else len(tokens) - filled]
        tokens[filled : filled + len(taken)] = taken
        filled += len(taken)
        if filled == len(tokens):
            return tokens.reshape(sequences, length)
    if document_start:
        raise UserError(
            f"the text holds {filled // length:,} documents of at least {length} tokens, "
            f"{sequences} sequences need {sequences:,}"
        )
    raise UserError(
        f"the text holds {filled:,} tokens, {sequences} sequences of {length} need {len(tokens):,}"
    )


def make_batches(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    sequences: int,
    length: int,
    end: int | None,
    document_start: bool = False,
    longest_document: int | None = None,
) -> np.ndarray:
    """``[sequences, length]`` token ids of ``texts``; see ``encode_stream`` and ``pack``.

    Documents of more than ``longest_document`` tokens, the end not counted, are left out. Where
    the tokenizer begins a text with tokens of its own (``<bos>``), so does every sequence.
    """
    before = leading_ids(tokenizer)
    length -= len(before)
    if length < 2:
        raise UserError(f"length {length + len(before)}: 2 tokens or more after {len(before)}")
    most = max(length if document_start else sequences * length, (longest_document or 0) + 1)
    documents = encode_stream(tokenizer, texts, end, most)
    if longest_document is not None:
        kept = longest_document + (end is not None)
        documents = (ids for ids in documents if len(ids) <= kept)
    cut = pack(documents, sequences=sequences, length=length, document_start=document_start)
    return np.hstack([np.tile(np.asarray(before, dtype=cut.dtype), (len(cut), 1)), cut])


def fix_split(
    tokenizer_file: str | Path,
    texts: Iterable[str],
    tokens_file: str | Path,
    *,
    name: str | Path,
    sequences: int,
    length: int,
    end_of_text: bool = True,
    document_start: bool = False,
    longest_document: int | None = None,
    sha256: str | None = None,
    end_token: str = END_OF_TEXT,
    model_vocabulary: int | None = None,
) -> dict:
    """Write a split's token file and return its record; the keywords are the configuration's.

    ``name`` is the file of the texts. Raises ``UserError`` with it where they are too short,
    an id is outside of a vocabulary, or the token file is not the one that ``sha256`` names.
    """
    tokenizer = read_tokenizer(tokenizer_file)
    try:
        tokens = make_batches(
            tokenizer,
            texts,
            sequences=sequences,
            length=length,
            end=end_of_text_id(tokenizer, end_token) if end_of_text else None,
            document_start=document_start,
            longest_document=longest_document,
        )
        check_ids(tokens, 1 + max(tokenizer.get_vocab().values()), whose="the tokenizer")
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
        "sequences": sequences,
        "length": length,
        "end_of_text": end_token if end_of_text else None,
        **({"begins_with": begins} if begins else {}),
        "document_start": document_start,
        "longest_document": longest_document,
        "largest_id": int(tokens.max()),
        "vocab_size": tokenizer.get_vocab_size(),
        "model_vocabulary": model_vocabulary,
        "sha256": digest,
        "tokenizer_sha256": file_sha256(tokenizer_file),
    }
