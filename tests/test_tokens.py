"""The tokenizer keeps every text, and batches hold documents and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from flatminima.text.packing import encode_stream
from flatminima.text.tokens import (
    END_OF_TEXT,
    file_sha256,
    read_tokens,
    train_tokenizer,
    write_tokens,
)

TRAINING_TEXTS = [
    "The quick brown fox jumps over the lazy dog.\n\n    indented code\n",
    "Parameters\n----------\nx : array_like\n    Input values, the quick ones.\n",
    "def f(x):\n        return x  # two  spaces\n",
] * 5
TRICKY = [
    "", " ", "\n", "\n   ", "   \n\n\t x", "a  b   c", "  leading", "trailing  ", "\r\n", "\x00",
    "naïve café", "日本語", "🙂👩‍👩‍👧", "e\u0301", "\ufeffx", "\u00a0",
    "def f(x):\n    return  x\n", END_OF_TEXT, f"a {END_OF_TEXT} b", "Ġ", "<|padding|>",
]  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(TRICKY)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TRAINING_TEXTS, 320)


def encode(tokenizer, text):
    [ids] = encode_stream(tokenizer, [text], end=0)
    return ids


def test_vocabulary(tokenizer):
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    assert tokenizer.get_vocab_size() == 320
    byte_level = set(pre_tokenizers.ByteLevel.alphabet())
    assert len(byte_level) == 256
    assert byte_level <= set(tokenizer.get_vocab())


@given(text=TEXTS)
def test_every_text_survives(tokenizer, text):
    ids = encode(tokenizer, text)
    assert ids[-1] == 0
    assert tokenizer.decode(ids[:-1], skip_special_tokens=False) == text


@given(texts=st.lists(TEXTS, max_size=5))
def test_one_end_of_text_a_document_and_nothing_before_it(tokenizer, texts):
    documents = list(encode_stream(tokenizer, texts, end=0))
    assert len(documents) == len(texts)
    for ids in documents:
        assert ids.count(0) == 1
        assert ids[-1] == 0


def test_a_document_that_spells_end_of_text_is_one_document(tokenizer):
    ids = encode(tokenizer, f"a{END_OF_TEXT}b")
    assert ids.count(0) == 1
    assert len(ids) > 4


def test_documents_are_encoded_alone_and_lazily(tokenizer):
    def texts():
        yield "first"
        raise RuntimeError("second")

    stream = encode_stream(tokenizer, texts(), end=0)
    assert next(stream) == encode(tokenizer, "first")
    with pytest.raises(RuntimeError, match="second"):
        next(stream)


def test_a_tokenizer_file_that_cuts_or_pads_does_neither(tokenizer):
    """Published tokenizer files may carry both settings."""
    text = "the quick brown fox " * 20
    altered = Tokenizer.from_str(tokenizer.to_str())
    altered.enable_truncation(5)
    altered.enable_padding(length=500)
    assert encode(altered, text) == encode(tokenizer, text)
    assert altered.truncation["max_length"] == 5  # the caller's own is left as it was


def test_training_is_repeatable_and_survives_a_file(tokenizer, tmp_path):
    again = train_tokenizer(iter(TRAINING_TEXTS), 320)
    assert again.to_str() == tokenizer.to_str()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TRICKY:
        assert encode(read, text) == encode(tokenizer, text)


@pytest.mark.parametrize("size", [0, 64, 256])
def test_a_vocabulary_smaller_than_the_bytes_is_refused(size):
    with pytest.raises(ValueError, match=f"vocab_size {size}: 257 or more"):
        train_tokenizer(TRAINING_TEXTS, size)
    assert train_tokenizer(TRAINING_TEXTS, 257).get_vocab_size() == 257


# Files


def test_tokens_survive_a_file(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50_304, (7, 33)).astype(np.int32)
    for stored in (tokens, tokens[::-1], tokens[:, ::2], np.asfortranarray(tokens)):
        write_tokens(tmp_path / "tokens.safetensors", stored)
        read = read_tokens(tmp_path / "tokens.safetensors")
        assert read.dtype == np.int32
        assert np.array_equal(read, stored)


def test_equal_tokens_make_equal_files(tmp_path):
    tokens = np.arange(12, dtype=np.int32).reshape(3, 4)
    write_tokens(tmp_path / "a", tokens)
    write_tokens(tmp_path / "b", tokens.copy(order="F"))
    assert file_sha256(tmp_path / "a") == file_sha256(tmp_path / "b")
    tokens[2, 3] += 1
    write_tokens(tmp_path / "b", tokens)
    assert file_sha256(tmp_path / "a") != file_sha256(tmp_path / "b")


def test_sha256_of_known_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_sha256(tmp_path / "abc") == digest
