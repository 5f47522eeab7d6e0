"""A suite on its user's own text, through Snakemake: one file says where it is."""

import json

import pytest
import yaml

from tests.workflow import TINY, copy_checkout, planned, snakemake

pytestmark = pytest.mark.workflow
TEXT = {"source": "files", "train": [{"path": "text/mine.txt"}],
        "validation": [{"path": "text/held_out.txt"}, {"path": "text/mine.txt"}]}  # fmt: skip
ASKED = ("results/tiny/data/train.safetensors", "--configfile", "own.yaml")


def test_ones_own_text_becomes_batches_an_edit_makes_them_anew_and_a_mistake_is_one_line(tmp_path):
    checkout = copy_checkout(tmp_path / "checkout")
    config = yaml.safe_load((checkout / TINY).read_text())
    config["suites"]["tiny"]["text"] = TEXT
    (checkout / "own.yaml").write_text(yaml.safe_dump(config))

    def run(failing: str = ""):
        ended = snakemake(*ASKED, "--cores", "1", folder=checkout)
        assert (ended.returncode != 0) == bool(failing), ended.stdout[-3000:]
        assert failing in ended.stdout and "Traceback" not in ended.stdout

    run("Error: config key suites.tiny.text.validation: no such file: text/held_out.txt, text/")
    assert not (checkout / "results").exists(), "before any job"

    (checkout / "text").mkdir()
    words = [f"word{n * n % 97} and word{n % 13}" for n in range(3000)]
    paragraphs = ["\n".join(words[n : n + 10]) for n in range(0, 3000, 10)]
    (checkout / "text/mine.txt").write_text("\n\n".join(paragraphs))
    run()
    manifest = json.loads((checkout / "results/tiny/data/text.json").read_text())
    assert manifest["validation"]["taken"] == manifest["train"]["taken"] == "text/mine.txt"
    passed = manifest["validation"]["passed_over"]
    assert passed == [{"source": "text/held_out.txt", "reason": "no such file"}]
    assert manifest["train"]["left_out_as_validation"] == manifest["validation"]["documents"]
    assert planned(*ASKED, folder=checkout) == {}

    (checkout / "text/mine.txt").write_text("\n\n".join(paragraphs[1:]))
    jobs = planned(*ASKED, folder=checkout)
    assert jobs == {"collect_text": 1, "train_tokenizer": 1, "fix_batches": 1}
    (checkout / "text/mine.txt").write_text("too short\n\nby far\n")
    run(".jsonl: the text holds ")
