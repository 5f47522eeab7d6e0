"""What validation shares with training: documents, and runs of thirteen words."""

from hypothesis import given
from hypothesis import strategies as st

from flatminima.text.leakage import (
    WINDOW,
    document_keys,
    shared_documents,
    shared_windows,
    window_hashes,
    without,
)

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=3 * WINDOW).map(" ".join), max_size=6)


def runs(texts) -> list[tuple[str, ...]]:
    """Every run of words, the slow way."""
    return [
        tuple(words[n : n + WINDOW])
        for words in map(str.split, texts)
        for n in range(len(words) - WINDOW + 1)
    ]


def test_documents_are_the_same_whatever_their_white_space():
    excluded = document_keys(["one two ", "three"])
    texts = ["one\n  two", "onetwo", "One two", " three", "four"]
    assert list(without(texts, excluded)) == ["onetwo", "One two", "four"]
    assert list(without(texts, set())) == texts
    assert shared_documents(texts, ["one two", "ONE TWO", "four", "\tfour "]) == 2
    assert shared_documents([], ["a"]) == shared_documents(["a"], []) == 0


def test_training_is_read_once_and_never_held():
    training = iter(["a", "b", "c"])
    assert shared_documents(training, ["b"]) == 1
    assert next(training, None) is None


@given(TEXTS, TEXTS)
def test_shared_runs_are_those_that_counting_them_all_finds(training, validation):
    known, wanted = set(runs(training)), runs(validation)
    found = shared_windows(iter(training), iter(validation))
    assert found["windows"] == found["windows_looked_for"] == len(wanted)
    if wanted:
        expected = round(100 * sum(run in known for run in wanted) / len(wanted), 3)
        assert found["in_training_pct"] == expected
    else:
        assert found["in_training_pct"] is None


def test_a_sample_stands_for_many_runs_and_is_the_same_every_time():
    words = [f"w{n}" for n in range(5000)]
    validation, training = " ".join(words), " ".join(words[: 5000 // 4])
    whole = shared_windows([training], [validation])
    part = shared_windows([training], [validation], most=1000)
    assert part["windows"] == whole["windows"] == 4988 and part["windows_looked_for"] == 1000
    assert abs(part["in_training_pct"] - whole["in_training_pct"]) < 5
    assert part == shared_windows([training], [validation], most=1000)


def test_the_order_of_words_matters():
    words = [f"w{n}" for n in range(WINDOW)]
    assert len(window_hashes(" ".join(words))) == 1
    assert len(window_hashes(" ".join(words[1:]))) == 0
    swapped = [words[1], words[0], *words[2:]]
    assert window_hashes(" ".join(words)) != window_hashes(" ".join(swapped))
