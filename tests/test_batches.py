"""The tokenizer keeps every text, and batches contain exactly the tokens of the documents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from flatminima.files import file_sha256
from flatminima.text import tokens as tokens_module
from flatminima.text.tokens import (
    END_OF_TEXT,
    encode_stream,
    fix_split,
    pack,
    read_tokens,
    train_tokenizer,
    write_tokens,
)

# A tokenizer of our own

TRAINING_TEXTS = [
    "The quick brown fox jumps over the lazy dog.\n\n    indented code\n",
    "Parameters\n----------\nx : array_like\n    Input values, the quick ones.\n",
    "def f(x):\n        return x  # two  spaces\n",
] * 5
TRICKY = [
    *("", " ", "\n", "\n   ", "   \n\n\t x", "a  b   c", "  leading", "trailing  ", "\r\n", "\x00"),
    *("naïve café", "日本語", "🙂👩‍👩‍👧", "e\u0301", "\ufeffx", "\u00a0"),
    *("def f(x):\n    return  x\n", END_OF_TEXT, f"a {END_OF_TEXT} b", "Ġ", "<|padding|>"),
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(TRICKY)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TRAINING_TEXTS, 320)


def ids(tokenizer, text, end=None, most=None) -> list[int]:
    [document] = encode_stream(tokenizer, [text], end, most)
    return document


@given(texts=st.lists(TEXTS, max_size=5))
def test_every_text_is_decoded_back_and_has_one_end_token(tokenizer, texts):
    documents = list(encode_stream(tokenizer, texts, end=0))
    assert len(documents) == len(texts)
    for document, text in zip(documents, texts, strict=True):
        assert document.count(0) == 1
        assert document[-1] == 0
        assert tokenizer.decode(document[:-1], skip_special_tokens=False) == text


@given(text=TEXTS, most=st.integers(1, 12))
def test_no_more_of_a_long_document_is_encoded_than_needed(tokenizer, text, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens_module, "PIECE", 8)
        patch.setattr(tokens_module, "_CUT_ZONE", 4)
        first_ids = ids(tokenizer, text, most=most)
        assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text
    assert len(first_ids) <= most + 8 * 4  # a piece of 8 characters of up to 4 bytes
    decoded = tokenizer.decode(first_ids, skip_special_tokens=False)
    assert text.startswith(decoded.rstrip("\ufffd"))
    assert decoded == text or len(first_ids) >= most


def test_pieces_that_are_cut_between_words_have_the_tokens_of_the_complete_text(
    tokenizer, monkeypatch
):
    text = "The quick  brown fox\n\n jumps over the lazy dog, x = 1. " * 200
    expected = ids(tokenizer, text)
    monkeypatch.setattr(tokens_module, "PIECE", 100)
    assert ids(tokenizer, text) == expected
    assert ids(tokenizer, text, most=50)[:50] == expected[:50]


def test_tokens_are_read_from_a_file_as_written(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50_304, (7, 33)).astype(np.int32)
    for stored in (tokens, tokens[::-1], tokens[:, ::2], np.asfortranarray(tokens)):
        write_tokens(tmp_path / "tokens.safetensors", stored)
        tokens_read = read_tokens(tmp_path / "tokens.safetensors")
        assert tokens_read.dtype == np.int32
        assert np.array_equal(tokens_read, stored)


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=12)),
    st.integers(1, 6),
    st.integers(1, 8),
    st.booleans(),
)
def test_packing_cuts_the_text_or_the_start_of_each_document_and_never_pads(
    documents, sequences, length, document_start
):
    if document_start:
        starts = [document[:length] for document in documents if len(document) >= length]
        stream = [token for start in starts for token in start]
        message = f"{len(starts)} documents of at least {length} "
    else:
        stream = [token for document in documents for token in document]
        message = f"{len(stream)} tokens; .* need {sequences * length}$"
    cut = {"sequences": sequences, "length": length, "document_start": document_start}
    if len(stream) < sequences * length:
        with pytest.raises(ValueError, match=message):
            pack(iter(documents), **cut)
        return
    tokens = pack(iter(documents), **cut)
    assert tokens.shape == (sequences, length) and tokens.dtype == np.int32
    assert tokens.reshape(-1).tolist() == stream[: sequences * length]


# A tokenizer like that of GPT-NeoX: a second special token, and tokens of 24 to 2 blanks


@pytest.fixture(scope="module")
def neox(tokenizer):
    neox = Tokenizer.from_str(tokenizer.to_str())
    neox.add_special_tokens(["<|padding|>"])
    neox.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return neox


def beginning(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """A copy that puts special tokens around a text, as some published tokenizers do."""
    tokens = [(name, tokenizer.token_to_id(name)) for name in (END_OF_TEXT, "<|padding|>")]
    altered = Tokenizer.from_str(tokenizer.to_str())
    altered.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)
    return altered


def test_ids_of_white_space_are_those_of_transformers(neox):
    theirs = PreTrainedTokenizerFast(tokenizer_object=neox)
    code = "def f(x):\n    if x:\n        return  x\n\n\n" + " " * 30 + "# end  \n   "
    plain = [text for text in TRICKY if "<|" not in text]  # special tokens are text to us
    for text in (*plain, *(" " * n for n in (2, 24, 25, 48)), "x     = 1", code):
        assert ids(neox, text) == theirs(text, add_special_tokens=False)["input_ids"], repr(text)
    expected_tokens = {
        " " * 25: [" " * 24, "Ġ"],
        " " * 48: [" " * 24, " " * 24],
        "\n   ": ["Ċ", "   "],
    }
    for text, tokens in expected_tokens.items():
        assert ids(neox, text) == [neox.token_to_id(token) for token in tokens]


def test_settings_of_the_tokenizer_for_cutting_padding_and_added_tokens_are_ignored(neox):
    text = "the fox " * 20
    altered = beginning(neox, f"<|padding|> $A {END_OF_TEXT}")
    altered.enable_truncation(5)
    altered.enable_padding(length=500)
    assert ids(altered, text) == ids(neox, text)
    assert ids(altered, text, end=0) == [*ids(neox, text), 0]
    assert altered.truncation["max_length"] == 5  # the caller's tokenizer is unchanged


# The file of a split


@pytest.fixture
def split(neox, tmp_path):
    """A function that makes a split with keys of the configuration; returns record and tokens."""

    def make(*texts, tokenizer=neox, **keys) -> tuple[dict, list]:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        texts = texts or ("fox", "the quick   brown fox", "the")
        tokens_file = tmp_path / "t.safetensors"
        settings = {"name": "train.jsonl", "sequences": 2, "length": 3} | keys
        record = fix_split(tmp_path / "tokenizer.json", texts, tokens_file, **settings)
        return record, read_tokens(tokens_file).tolist()

    return make


@pytest.mark.parametrize("end_of_text", [True, False])
def test_documents_have_an_end_or_not_and_long_ones_can_be_left_out(neox, split, end_of_text):
    fox = ids(neox, "fox")
    the = ids(neox, "the")
    expected = [*fox, 0, 0, *the, 0] if end_of_text else [*fox, *the]
    settings = {"sequences": 1, "length": len(expected), "end_of_text": end_of_text}
    assert split("fox", "", "the", **settings)[1] == [expected]
    long_texts = ("the quick brown fox " * 3, "fox!")
    _, tokens = split("fox", *long_texts, "", "the", longest_document=len(fox), **settings)
    assert tokens == [expected]


def test_sequences_begin_as_the_tokenizer_begins_a_text(neox, split):
    """A model that was trained with ``<bos>`` at the start is scored with it."""
    texts = ["the fox and the other"] * 3
    padding = neox.token_to_id("<|padding|>")
    record, tokens = split(*texts, tokenizer=beginning(neox, "<|padding|> $A"), length=8)
    assert record["begins_with"] == ["<|padding|>"]
    _, tokens_without = split(*texts, length=7)
    assert tokens == [[padding, *row] for row in tokens_without]


def test_the_record_has_the_settings_and_digests_of_the_split(neox, split, tmp_path):
    record, tokens = split(model_vocabulary=400, longest_document=100)
    assert record == {
        "sequences": 2,
        "length": 3,
        "end_of_text": END_OF_TEXT,
        "document_start": False,
        "longest_document": 100,
        "largest_id": np.max(tokens),
        "vocab_size": neox.get_vocab_size(),
        "model_vocabulary": 400,
        "sha256": file_sha256(tmp_path / "t.safetensors"),
        "tokenizer_sha256": file_sha256(tmp_path / "tokenizer.json"),
    }
    assert split(end_of_text=False)[0]["end_of_text"] is None
    assert split(end_token="<|padding|>")[0]["end_of_text"] == "<|padding|>"
    assert split(sha256=record["sha256"])[0]["sha256"] == record["sha256"]
    with pytest.raises(ValueError, match=f"not {record['sha256']}"):
        split(sha256=record["sha256"], end_of_text=False)
    assert not (tmp_path / "t.safetensors").exists()


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"sequences": 100}, ["100 sequences of 3 need 300"]),
        ({"length": 30, "document_start": True}, ["0 documents of at least 30 tokens"]),
        ({"end_token": "</s>"}, ["no </s>", "tokenizer.end_of_text", END_OF_TEXT, "<|padding|>"]),
        ({"model_vocabulary": 50}, ["architecture.vocab_size", "50 entries"]),
    ],
)
def test_a_mistake_in_a_split_gives_one_line_with_its_file(split, tmp_path, keys, parts):
    with pytest.raises(ValueError) as error:
        split(**keys)
    assert str(error.value).startswith("train.jsonl: ")
    assert all(part in str(error.value) for part in parts)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "t.safetensors").exists()
