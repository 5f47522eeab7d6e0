"""A suite on the user's own text, built with Snakemake and one configuration file."""

import json

import pytest
import yaml

from tests.workflow import TINY, copy_checkout, planned, snakemake

pytestmark = pytest.mark.workflow
TEXT = {
    "source": "files",
    "train": [{"path": "text/mine.txt"}],
    "validation": [{"path": "text/held_out.txt"}, {"path": "text/mine.txt"}],
}
TARGET = ("results/tiny/data/train.safetensors", "--configfile", "own.yaml")


def test_own_text_becomes_batches_an_edit_rebuilds_them_and_a_mistake_gives_one_line(tmp_path):
    checkout = copy_checkout(tmp_path / "checkout")
    config = yaml.safe_load((checkout / TINY).read_text())
    config["suites"]["tiny"]["text"] = TEXT
    (checkout / "own.yaml").write_text(yaml.safe_dump(config))

    def build(expected_error: str = ""):
        run = snakemake(*TARGET, "--cores", "1", folder=checkout)
        assert (run.returncode != 0) == bool(expected_error), run.stdout[-3000:]
        assert expected_error in run.stdout
        assert "Traceback" not in run.stdout

    build("Error: config key suites.tiny.text.train: no such file: text/mine.txt")
    assert not (checkout / "results").exists(), "before any job"

    (checkout / "text").mkdir()
    lines = [f"word{n * n % 97} and word{n % 13}" for n in range(3000)]
    paragraphs = ["\n".join(lines[n : n + 10]) for n in range(0, 3000, 10)]
    (checkout / "text/mine.txt").write_text("\n\n".join(paragraphs))
    build()
    validation, train = (
        json.loads((checkout / f"results/tiny/data/{split}_text.json").read_text())
        for split in ("validation", "train")
    )
    assert validation["taken"] == train["taken"] == "text/mine.txt"
    passed_over = validation["passed_over"]
    assert passed_over == [{"source": "text/held_out.txt", "reason": "no such file"}]
    assert train["left_out_as_validation"] == validation["documents"]
    assert planned(*TARGET, folder=checkout) == {}

    (checkout / "text/mine.txt").write_text("\n\n".join(paragraphs[1:]))
    jobs = planned(*TARGET, folder=checkout)
    assert jobs == {"collect_split": 2, "train_tokenizer": 1, "fix_split": 1}
    (checkout / "text/mine.txt").write_text("too short\n\nby far\n")
    build(".jsonl: the text has ")
