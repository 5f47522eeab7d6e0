"""The tokenizer keeps every text, and batches hold documents and not a token more or less."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from flatminima.files import file_sha256
from flatminima.text import batches
from flatminima.text.batches import encode_stream, end_of_text_id, fix_split, make_batches, pack
from flatminima.text.tokens import (
    END_OF_TEXT,
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


def encode(tokenizer, text, most=None):
    [ids] = encode_stream(tokenizer, [text], end=0, most=most)
    return ids


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


def test_a_tokenizer_file_that_cuts_or_pads_does_neither(tokenizer):
    """Published tokenizer files may carry both settings."""
    text = "the quick brown fox " * 20
    altered = Tokenizer.from_str(tokenizer.to_str())
    altered.enable_truncation(5)
    altered.enable_padding(length=500)
    assert encode(altered, text) == encode(tokenizer, text)
    assert altered.truncation["max_length"] == 5  # the caller's own is left as it was


@given(text=TEXTS, most=st.integers(1, 12))
def test_no_more_of_a_long_document_is_encoded_than_is_asked_for(tokenizer, text, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "PIECE", 8)
        patch.setattr(batches, "_NEAR", 4)
        cut = encode(tokenizer, text, most)
        assert tokenizer.decode(encode(tokenizer, text)[:-1], skip_special_tokens=False) == text
    assert len(cut) <= most + 8 * 4 + 1
    kept = tokenizer.decode(cut[:-1], skip_special_tokens=False)
    assert text.startswith(kept.rstrip("\ufffd")) and (kept == text or len(cut) > most)


def test_pieces_that_are_cut_between_words_have_the_tokens_of_the_whole(tokenizer):
    text = "The quick  brown fox\n\n jumps over the lazy dog, x = 1. " * 200
    whole = encode(tokenizer, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "PIECE", 100)
        assert encode(tokenizer, text) == whole
        assert encode(tokenizer, text, most=50)[:50] == whole[:50]


# Files


def test_tokens_survive_a_file(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50_304, (7, 33)).astype(np.int32)
    for stored in (tokens, tokens[::-1], tokens[:, ::2], np.asfortranarray(tokens)):
        write_tokens(tmp_path / "tokens.safetensors", stored)
        read = read_tokens(tmp_path / "tokens.safetensors")
        assert read.dtype == np.int32
        assert np.array_equal(read, stored)


# Packing


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=9).map(lambda ids: [*ids, 0]), min_size=1),
    st.integers(1, 6),
    st.integers(1, 8),
)
def test_packing_cuts_the_concatenation_and_never_pads(documents, sequences, length):
    stream = [token for ids in documents for token in ids]
    if len(stream) < sequences * length:
        message = f"holds {len(stream)} tokens, .* need {sequences * length}$"
        with pytest.raises(ValueError, match=message):
            pack(iter(documents), sequences=sequences, length=length)
        return
    tokens = pack(iter(documents), sequences=sequences, length=length)
    assert tokens.shape == (sequences, length)
    assert tokens.dtype == np.int32
    assert tokens.reshape(-1).tolist() == stream[: sequences * length]


@given(st.lists(st.lists(st.integers(1, 50), max_size=12)), st.integers(1, 5), st.integers(1, 6))
def test_starts_of_documents_come_in_order_and_none_is_padded(documents, sequences, length):
    expected = [ids[:length] for ids in documents if len(ids) >= length]
    if len(expected) < sequences:
        with pytest.raises(ValueError, match=f"holds {len(expected)} documents of at least"):
            pack(documents, sequences=sequences, length=length, document_start=True)
        return
    tokens = pack(documents, sequences=sequences, length=length, document_start=True)
    assert tokens.tolist() == expected[:sequences]


# A tokenizer as GPT-NeoX has it: byte-level BPE, two special tokens, runs of blanks after


SIZE = 2 + 256 + 6 + 23


@pytest.fixture(scope="module")
def neox():
    """Ids 0 and 1 are special, the bytes and merges follow, then runs of 24 to 2 blanks."""
    merges = [("Ġ", "f"), ("o", "x"), ("f", "ox"), ("t", "h"), ("th", "e"), ("Ċ", "Ċ")]
    tokens = [END_OF_TEXT, "<|padding|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += ["".join(merge) for merge in merges]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT, "<|padding|>"])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    assert tokenizer.get_vocab_size() == SIZE
    return tokenizer


def ids(tokenizer, text, end=None) -> list[int]:
    [found] = encode_stream(tokenizer, [text], end)
    return found


def blanks(count: int) -> int:
    """Id of a run of ``count`` blanks in the tokenizer above."""
    return SIZE + 1 - count


GOLDEN = {
    "": [], " ": ["Ġ"], "  ": [blanks(2)], "\n   ": ["Ċ", blanks(3)], "\n\n\t": ["ĊĊ", "ĉ"],
    " " * 24: [blanks(24)], " " * 25: [blanks(24), "Ġ"], " " * 48: [blanks(24), blanks(24)],
    "x     = 1": ["x", blanks(5), "=", "Ġ", "1"], "\ufeffx": ["ï", "»", "¿", "x"],
    "\u00a0": ["Â", "ł"], "\r\n": ["č", "Ċ"],
}  # fmt: skip
CODE = "def f(x):\n    if x:\n        return  x\n\n\n" + " " * 30 + "# end  \n   "


def test_golden_ids_of_white_space_are_those_of_transformers(neox):
    """They moved between versions of the libraries; of the file they do not."""
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=neox)
    for text, golden in GOLDEN.items():
        expected = [neox.token_to_id(t) if isinstance(t, str) else t for t in golden]
        assert ids(neox, text) == expected, repr(text)
        assert neox.decode(expected, skip_special_tokens=False) == text
    for text in (*GOLDEN, CODE, "a  b   c    d", "  leading", "trailing  "):
        assert ids(neox, text) == theirs(text, add_special_tokens=False)["input_ids"], repr(text)


def test_what_the_file_adds_around_a_text_is_left_out(neox):
    """Published tokenizers begin a text with a token, end it with one, or both."""
    adding = Tokenizer.from_str(neox.to_str())
    adding.post_processor = processors.TemplateProcessing(
        single=f"<|padding|> $A {END_OF_TEXT}",
        special_tokens=[("<|padding|>", 1), (END_OF_TEXT, 0)],
    )
    assert adding.encode("fox").ids[0] == 1 and adding.encode("fox").ids[-1] == 0
    assert ids(adding, "fox") == ids(neox, "fox")
    assert ids(adding, "fox", end=0) == [*ids(neox, "fox"), 0]


def test_end_of_text_between_documents_or_not(neox):
    texts = ["fox", "", "the"]
    fox, the = ids(neox, "fox"), ids(neox, "the")
    for end, expected in ((0, [*fox, 0, 0, *the, 0]), (None, [*fox, *the])):
        details = {"sequences": 1, "length": len(expected), "end": end}
        assert make_batches(neox, texts, **details).tolist() == [expected]


def test_longer_documents_can_be_left_out(neox):
    texts = ["fox", "the quick brown fox " * 3, "the", "quick"]
    longest = len(ids(neox, "fox"))
    kept = [t for t in texts if len(ids(neox, t)) <= longest]
    assert "fox" in kept and texts[1] not in kept
    for end in (0, None):
        expected = [token for text in kept for token in ids(neox, text, end)]
        details = {"sequences": 1, "length": len(expected), "end": end}
        found = make_batches(neox, texts, longest_document=longest, **details)
        assert found.tolist() == [expected]


def test_another_token_can_end_a_text(neox):
    assert end_of_text_id(neox) == 0
    assert end_of_text_id(neox, "<|padding|>") == 1
    with pytest.raises(ValueError, match="has no </s>; .*<|endoftext|>, <|padding|>"):
        end_of_text_id(neox, "</s>")


# The file of a split


@pytest.fixture
def split(neox, tmp_path):
    """Function that makes a split of three documents with the keys of the configuration."""
    neox.save(str(tmp_path / "tokenizer.json"))
    texts = ["fox", "the quick   brown fox", "the"]

    def make(**keys) -> dict:
        files = tmp_path / "tokenizer.json", texts, tmp_path / "t.safetensors"
        return fix_split(*files, **{"name": "train.jsonl", "sequences": 2, "length": 3} | keys)

    return make


def test_the_record_says_how_the_split_was_cut(split, tmp_path):
    record = split(model_vocabulary=400, longest_document=100)
    assert record == {
        "sequences": 2, "length": 3, "end_of_text": END_OF_TEXT, "document_start": False,
        "longest_document": 100, "largest_id": int(read_tokens(tmp_path / "t.safetensors").max()),
        "vocab_size": SIZE, "model_vocabulary": 400,
        "sha256": file_sha256(tmp_path / "t.safetensors"),
        "tokenizer_sha256": file_sha256(tmp_path / "tokenizer.json"),
    }  # fmt: skip
    assert split(end_of_text=False)["end_of_text"] is None
    assert split(end_token="<|padding|>")["end_of_text"] == "<|padding|>"


def test_a_token_file_can_be_held_to_a_digest(split, tmp_path):
    digest = split()["sha256"]
    assert split(sha256=digest)["sha256"] == digest
    with pytest.raises(ValueError, match=f"t.safetensors: its sha256 is .*, not {digest} as con"):
        split(sha256=digest, end_of_text=False)
    assert not (tmp_path / "t.safetensors").exists()


def test_what_is_wrong_with_a_split_is_one_line_with_its_file(split, tmp_path):
    for keys, line in (
        ({"sequences": 100}, "100 sequences of 3 need 300"),
        ({"length": 30, "document_start": True}, "0 documents of at least 30 tokens"),
        ({"end_token": "</s>"}, "the tokenizer has no </s>"),
        ({"model_vocabulary": 50}, "the model (architecture.vocab_size) has 50 entries"),
    ):
        with pytest.raises(ValueError) as error:
            split(**keys)
        assert str(error.value).startswith("train.jsonl: ") and line in str(error.value)
        assert "\n" not in str(error.value) and not (tmp_path / "t.safetensors").exists()


def test_sequences_begin_as_the_tokenizer_begins_a_text():
    """A model that was always given ``<bos>`` first is scored after it, as the audit does."""
    tokenizer = train_tokenizer(["a few words of a text"] * 20, 300)
    plain = make_batches(tokenizer, ["a few words"] * 20, sequences=3, length=7, end=0)
    first = tokenizer.id_to_token(9)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, 9)]
    )
    found = make_batches(tokenizer, ["a few words"] * 20, sequences=3, length=8, end=0)
    assert (found[:, 0] == 9).all()
    np.testing.assert_array_equal(found[:, 1:], plain)
