"""A suite on its user's own text, through Snakemake: one file says where it is."""

import json

import pytest

from tests.workflow import TINY, copy_checkout, planned, snakemake

pytestmark = pytest.mark.workflow

OWN = """
suites:
  tiny:
    text:
      source: files
      validation: [{path: text/held_out.txt}, {path: text/mine.txt}]
      train: [{path: text/mine.txt}]
"""
TOKENS = "results/tiny/data/train.safetensors"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = copy_checkout(tmp_path_factory.mktemp("own") / "text")
    tiny = (folder / TINY).read_text()
    start = tiny.index("    text:\n")
    stop = tiny.index("    tokenizer:\n")
    own = OWN[OWN.index("    text:\n") :]
    (folder / "own.yaml").write_text(tiny[:start] + own.lstrip("\n") + tiny[stop:])
    return folder


def run(folder, *arguments):
    return snakemake("--configfile", "own.yaml", *arguments, folder=folder)


def test_text_that_is_not_there_is_one_line_before_any_job(checkout):
    ended = run(checkout, "--cores", "1", TOKENS)
    assert ended.returncode != 0 and "Traceback" not in ended.stdout
    line = "Error: config key suites.tiny.text.validation: no such file: text/held_out.txt, text/"
    assert line in ended.stdout and not (checkout / "results").exists()


def test_ones_own_text_becomes_batches_and_an_edit_makes_them_anew(checkout):
    (checkout / "text").mkdir()
    words = [f"word{n * n % 97} and word{n % 13}" for n in range(3000)]
    paragraphs = ["\n".join(words[n : n + 10]) for n in range(0, 3000, 10)]
    (checkout / "text/mine.txt").write_text("\n\n".join(paragraphs))
    ended = run(checkout, "--cores", "1", TOKENS)
    assert ended.returncode == 0, ended.stdout[-3000:]
    manifest = json.loads((checkout / "results/tiny/data/text.json").read_text())
    assert manifest["validation"]["taken"] == manifest["train"]["taken"] == "text/mine.txt"
    passed = manifest["validation"]["passed_over"]
    assert passed == [{"source": "text/held_out.txt", "reason": "no such file"}]
    assert manifest["train"]["left_out_as_validation"] == manifest["validation"]["documents"]
    assert planned(TOKENS, "--configfile", "own.yaml", folder=checkout) == {}

    (checkout / "text/mine.txt").write_text("\n\n".join(paragraphs[1:]))
    jobs = planned(TOKENS, "--configfile", "own.yaml", folder=checkout)
    assert jobs == {"collect_text": 1, "train_tokenizer": 1, "fix_batches": 1}


def test_what_is_wrong_with_ones_own_text_is_one_line(checkout):
    (checkout / "text/mine.txt").write_text("too short\n\nby far\n")
    ended = run(checkout, "--cores", "1", TOKENS)
    assert ended.returncode != 0 and "Traceback" not in ended.stdout
    assert "validation.jsonl: the text holds" in ended.stdout
