"""The token file of a split, and the record of what it holds."""

from pathlib import Path

from tokenizers import Tokenizer

from flatminima.errors import UserError
from flatminima.files import file_sha256
from flatminima.text.documents import read_documents
from flatminima.text.leakage import shared_documents, shared_windows
from flatminima.text.packing import end_of_text_id, make_batches
from flatminima.text.tokens import END_OF_TEXT, check_ids, write_tokens


def overlap(train: str | Path, validation: str | Path) -> dict:
    """What validation's text shares with all the text that was collected for training.

    Raises ``UserError`` where that is whole documents.
    """
    shared = shared_documents(read_documents(train), read_documents(validation))
    if shared:
        raise UserError(f"{train}: {shared} validation documents occur in training")
    windows = shared_windows(read_documents(train), read_documents(validation))
    return {"documents_shared_with_training": 0, "word_windows_shared_with_training": windows}


def fix_split(
    tokenizer_file: str | Path,
    text: str | Path,
    tokens_file: str | Path,
    *,
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

    Raises ``UserError`` with the file's name where its text is too short, an id is outside
    of a vocabulary, or the token file is not the one that ``sha256`` names.
    """
    tokenizer = _read_tokenizer(tokenizer_file)
    try:
        tokens = make_batches(
            tokenizer,
            read_documents(text),
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
        raise UserError(f"{text}: {error}") from error
    write_tokens(tokens_file, tokens)
    digest = file_sha256(tokens_file)
    if sha256 is not None and digest != sha256:
        Path(tokens_file).unlink()
        raise UserError(f"{tokens_file}: its sha256 is {digest}, not {sha256} as configured")
    return {
        "sequences": sequences,
        "length": length,
        "end_of_text": end_token if end_of_text else None,
        "document_start": document_start,
        "longest_document": longest_document,
        "largest_id": int(tokens.max()),
        "vocab_size": tokenizer.get_vocab_size(),
        "model_vocabulary": model_vocabulary,
        "sha256": digest,
        "tokenizer_sha256": file_sha256(tokenizer_file),
    }


def _read_tokenizer(path: str | Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # what tokenizers raises is a bare Exception
        raise UserError(f"{path}: is no tokenizer.json ({error})") from error
