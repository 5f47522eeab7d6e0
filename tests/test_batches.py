"""The tokenizer keeps every text, and batches hold documents and not a token more or less."""

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
    "", " ", "\n", "\n   ", "   \n\n\t x", "a  b   c", "  leading", "trailing  ", "\r\n", "\x00",
    "naïve café", "日本語", "🙂👩‍👩‍👧", "e\u0301", "\ufeffx", "\u00a0",
    "def f(x):\n    return  x\n", END_OF_TEXT, f"a {END_OF_TEXT} b", "Ġ", "<|padding|>",
]  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(TRICKY)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TRAINING_TEXTS, 320)


def ids(tokenizer, text, end=None, most=None) -> list[int]:
    [found] = encode_stream(tokenizer, [text], end, most)
    return found


@given(texts=st.lists(TEXTS, max_size=5))
def test_every_text_survives_with_one_end_after_it_and_nothing_before(tokenizer, texts):
    documents = list(encode_stream(tokenizer, texts, end=0))
    assert len(documents) == len(texts)
    for document, text in zip(documents, texts, strict=True):
        assert document.count(0) == 1 and document[-1] == 0
        assert tokenizer.decode(document[:-1], skip_special_tokens=False) == text


@given(text=TEXTS, most=st.integers(1, 12))
def test_no_more_of_a_long_document_is_encoded_than_is_asked_for(tokenizer, text, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens_module, "PIECE", 8)
        patch.setattr(tokens_module, "_NEAR", 4)
        cut = ids(tokenizer, text, most=most)
        assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text
    assert len(cut) <= most + 8 * 4
    kept = tokenizer.decode(cut, skip_special_tokens=False)
    assert text.startswith(kept.rstrip("\ufffd")) and (kept == text or len(cut) >= most)


def test_pieces_that_are_cut_between_words_have_the_tokens_of_the_whole(tokenizer, monkeypatch):
    text = "The quick  brown fox\n\n jumps over the lazy dog, x = 1. " * 200
    whole = ids(tokenizer, text)
    monkeypatch.setattr(tokens_module, "PIECE", 100)
    assert ids(tokenizer, text) == whole
    assert ids(tokenizer, text, most=50)[:50] == whole[:50]


def test_tokens_survive_a_file(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50_304, (7, 33)).astype(np.int32)
    for stored in (tokens, tokens[::-1], tokens[:, ::2], np.asfortranarray(tokens)):
        write_tokens(tmp_path / "tokens.safetensors", stored)
        read = read_tokens(tmp_path / "tokens.safetensors")
        assert read.dtype == np.int32 and np.array_equal(read, stored)


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=12)),
    st.integers(1, 6),
    st.integers(1, 8),
    st.booleans(),
)
def test_packing_cuts_the_text_or_the_start_of_each_document_and_never_pads(
    documents, sequences, length, starts
):
    if starts:
        stream = [i for ids in documents if len(ids) >= length for i in ids[:length]]
        message = f"holds {len(stream) // length} documents of at least {length} "
    else:
        stream = [token for ids in documents for token in ids]
        message = f"holds {len(stream)} tokens, .* need {sequences * length}$"
    how = {"sequences": sequences, "length": length, "document_start": starts}
    if len(stream) < sequences * length:
        with pytest.raises(ValueError, match=message):
            pack(iter(documents), **how)
        return
    tokens = pack(iter(documents), **how)
    assert tokens.shape == (sequences, length) and tokens.dtype == np.int32
    assert tokens.reshape(-1).tolist() == stream[: sequences * length]


# A tokenizer as GPT-NeoX has it: a second special token, and runs of 24 to 2 blanks


@pytest.fixture(scope="module")
def neox(tokenizer):
    neox = Tokenizer.from_str(tokenizer.to_str())
    neox.add_special_tokens(["<|padding|>"])
    neox.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return neox


def beginning(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """A copy that puts special tokens around a text, as published ones may."""
    named = [(name, tokenizer.token_to_id(name)) for name in (END_OF_TEXT, "<|padding|>")]
    altered = Tokenizer.from_str(tokenizer.to_str())
    altered.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    return altered


def test_ids_of_white_space_are_those_of_transformers(neox):
    theirs = PreTrainedTokenizerFast(tokenizer_object=neox)
    code = "def f(x):\n    if x:\n        return  x\n\n\n" + " " * 30 + "# end  \n   "
    plain = [text for text in TRICKY if "<|" not in text]  # special tokens are text to us
    for text in (*plain, *(" " * n for n in (2, 24, 25, 48)), "x     = 1", code):
        assert ids(neox, text) == theirs(text, add_special_tokens=False)["input_ids"], repr(text)
    for text, golden in ((" " * 25, [" " * 24, "Ġ"]), (" " * 48, [" " * 24] * 2),
                         ("\n   ", ["Ċ", "   "])):  # fmt: skip
        assert ids(neox, text) == list(map(neox.token_to_id, golden))


def test_what_the_file_cuts_pads_or_adds_around_a_text_is_left_out(neox):
    text, altered = "the fox " * 20, beginning(neox, f"<|padding|> $A {END_OF_TEXT}")
    altered.enable_truncation(5)
    altered.enable_padding(length=500)
    assert ids(altered, text) == ids(neox, text)
    assert ids(altered, text, end=0) == [*ids(neox, text), 0]
    assert altered.truncation["max_length"] == 5  # the caller's own is left as it was


# The file of a split


@pytest.fixture
def split(neox, tmp_path):
    """Function that makes a split with the keys of the configuration: its record, its tokens."""

    def make(*texts, tokenizer=neox, **keys) -> tuple[dict, list]:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        texts = texts or ("fox", "the quick   brown fox", "the")
        files = tmp_path / "tokenizer.json", texts, tmp_path / "t.safetensors"
        how = {"name": "train.jsonl", "sequences": 2, "length": 3} | keys
        return fix_split(*files, **how), read_tokens(files[2]).tolist()

    return make


def test_documents_are_ended_or_not_and_longer_ones_can_be_left_out(neox, split):
    fox, the = ids(neox, "fox"), ids(neox, "the")
    for ended, expected in ((True, [*fox, 0, 0, *the, 0]), (False, [*fox, *the])):
        how = {"sequences": 1, "length": len(expected), "end_of_text": ended}
        assert split("fox", "", "the", **how)[1] == [expected]
        long = "the quick brown fox " * 3
        found = split("fox", long, "fox!", "", "the", longest_document=len(fox), **how)[1]
        assert found == [expected]


def test_sequences_begin_as_the_tokenizer_begins_a_text(neox, split):
    """A model that was always given ``<bos>`` first is scored after it, as the audit does."""
    texts, padding = ["the fox and the other"] * 3, neox.token_to_id("<|padding|>")
    record, found = split(*texts, tokenizer=beginning(neox, "<|padding|> $A"), length=8)
    assert record["begins_with"] == ["<|padding|>"]
    assert found == [[padding, *row] for row in split(*texts, length=7)[1]]


def test_the_record_says_how_the_split_was_cut(neox, split, tmp_path):
    record, tokens = split(model_vocabulary=400, longest_document=100)
    assert record == {
        "sequences": 2, "length": 3, "end_of_text": END_OF_TEXT, "document_start": False,
        "longest_document": 100, "largest_id": np.max(tokens),
        "vocab_size": neox.get_vocab_size(), "model_vocabulary": 400,
        "sha256": file_sha256(tmp_path / "t.safetensors"),
        "tokenizer_sha256": file_sha256(tmp_path / "tokenizer.json"),
    }  # fmt: skip
    assert split(end_of_text=False)[0]["end_of_text"] is None
    assert split(end_token="<|padding|>")[0]["end_of_text"] == "<|padding|>"
    assert split(sha256=record["sha256"])[0]["sha256"] == record["sha256"]
    with pytest.raises(ValueError, match=f"sha256 is .*, not {record['sha256']} as configured"):
        split(sha256=record["sha256"], end_of_text=False)
    assert not (tmp_path / "t.safetensors").exists()


def test_what_is_wrong_with_a_split_is_one_line_with_its_file(split, tmp_path):
    for keys, line in (
        ({"sequences": 100}, "100 sequences of 3 need 300"),
        ({"length": 30, "document_start": True}, "0 documents of at least 30 tokens"),
        ({"end_token": "</s>"}, f"has no </s>; set tokenizer.end_of_text to a token that it has "
                                f"(special ones: {END_OF_TEXT}, <|padding|>)"),
        ({"model_vocabulary": 50}, "the model (architecture.vocab_size) has 50 entries"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            split(**keys)
        assert str(error.value).startswith("train.jsonl: ") and line in str(error.value)
        assert "\n" not in str(error.value) and not (tmp_path / "t.safetensors").exists()
