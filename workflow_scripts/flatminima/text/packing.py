"""Documents to fixed batches of tokens.

The batches are made once per suite and are the same file for every checkpoint,
fork and quantizer (section 3 and appendix A: "constructed once and reused").
"""

from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

from flatminima.errors import UserError
from flatminima.text.tokens import END_OF_TEXT


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
    tokenizer: Tokenizer, texts: Iterable[str], end: int | None
) -> Iterator[list[int]]:
    """Token ids of each document, followed by ``end`` unless that is ``None``; no other token.

    A document that spells a special token is encoded as those characters, so that the id
    means the end of a document and nothing else. Nothing that the tokenizer's file says of
    tokens around a text, cutting or padding is done.
    """
    tokenizer = Tokenizer.from_str(tokenizer.to_str())  # the caller's keeps its settings
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    after = [] if end is None else [end]
    for text in texts:
        yield [*tokenizer.encode(text, add_special_tokens=False).ids, *after]


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

    Documents of more than ``longest_document`` tokens, the end not counted, are left out.
    """
    documents = encode_stream(tokenizer, texts, end)
    if longest_document is not None:
        most = longest_document + (end is not None)
        documents = (ids for ids in documents if len(ids) <= most)
    return pack(documents, sequences=sequences, length=length, document_start=document_start)
