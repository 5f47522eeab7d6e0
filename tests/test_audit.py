"""The audit command: a run, one model, a hub repository; its answer; bad input in one line."""

import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from flatminima.model import build_model, load_model, save_model
from flatminima.quantizers import linear_weights
from flatminima.scoring import Prober
from flatminima.text.tokens import read_tokens, train_tokenizer
from flatminima.tools.audit import (
    BAD_INPUT,
    LEFT_PLATEAU,
    PASSED,
    LiveTable,
    audit,
    even_spacing,
    judge,
)
from flatminima.tools.options import AuditOptions
from flatminima.tools.sources import open_source
from tests import synthetic
from tests.conftest import TINY
from tests.hub.libraries import point_at
from tests.hub.repos import lazy_branches, model_branches
from tests.hub.server import TinyHub

TEXT = "the weights of a model are rounded to few values and the loss is what it is\n\n" * 120
SMALL = {"sequences": 8, "length": 16, "resamples": 20}


@pytest.fixture(scope="module")
def tokenizer_bytes():
    return train_tokenizer([TEXT], 300).to_str().encode()


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer_bytes):
    """A run of eight checkpoints whose weights grow, as the Trainer leaves one."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    model = build_model(TINY, 300, seed=0)
    for step in range(10, 90, 10):
        with torch.no_grad():
            for weight in linear_weights(model).values():
                weight.mul_(1.25)
        save_model(model, folder / f"checkpoint-{step}")
    (folder / "checkpoint-80/tokenizer.json").write_bytes(tokenizer_bytes)
    log = [{"step": s, "learning_rate": 0.01 - s * 1e-4, "loss": 1.0} for s in range(10, 90, 10)]
    state = {"log_history": [*log, {"step": 80, "eval_loss": 1.0}]}
    (folder / "checkpoint-80/trainer_state.json").write_text(json.dumps(state))
    (folder / "checkpoint-85").mkdir()
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "validation.txt"
    path.write_text(TEXT)
    return str(path)


def run_audit(target, **options):
    """Exit code and what was printed."""
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    code = audit(AuditOptions(str(target), **(SMALL | options)), console)
    return code, console.file.getvalue()


def error_line(printed):
    """The one line that says what is wrong; it is the last."""
    assert "Traceback" not in printed
    lines = printed.splitlines()
    assert [line for line in lines if line.startswith("Error: ")] == lines[-1:]
    return lines[-1]


def test_a_run_is_audited_whole(run, text, tmp_path):
    code, printed = run_audit(run, data=text, out=str(tmp_path / "out"))
    out = tmp_path / "out"
    assert code == PASSED
    assert "checkpoint-85: no config.json" in printed
    assert printed.count("FP32 ppl") == 8 and "8/8: step 80," in printed
    assert f"text: {text}, 8 sequences of 16 tokens" in printed
    audited = pd.read_csv(out / "audit.csv")
    assert list(audited.columns) == list(synthetic.audit(short=True).columns)
    assert audited.step.unique().tolist() == list(range(10, 90, 10))
    assert audited.lr_fraction.iloc[0] == 1.0 and audited.lr.iloc[-1] == pytest.approx(0.002)
    sequences = pd.read_parquet(out / "audit_sequences.parquet")
    assert len(sequences) == 8 * 3 * 8
    # What was measured is what the workflow's probe measures.
    settings = json.loads((out / "audit.json").read_text())["probe"]
    prober = Prober(str(out / "validation.safetensors"), settings, torch.get_num_threads())
    own = prober(load_model(run / "checkpoint-40"), 40).reset_index(drop=True)
    stored = sequences[sequences.step == 40].reset_index(drop=True)
    pd.testing.assert_frame_equal(own, stored)
    for suffix in ("pdf", "svg", "png"):
        assert (out / f"audit.{suffix}").stat().st_size > 5000
    assert "mine" in (out / "audit.svg").read_text()
    assert printed.splitlines()[-1].startswith("INT4 gap: ")


def test_the_same_audit_has_the_same_bytes(run, text, tmp_path):
    for name in ("a", "b"):
        run_audit(run, data=text, out=str(tmp_path / name), revisions=("10", "checkpoint-80"))
    for file in ("audit.csv", "audit.svg", "audit.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert pd.read_csv(tmp_path / "a/audit.csv").step.unique().tolist() == [10, 80]


def test_one_model_has_a_row_and_no_curve(run, text, tmp_path):
    code, printed = run_audit(run / "checkpoint-80", data=text, out=str(tmp_path / "out"))
    assert code == PASSED
    assert "undecided: 1 checkpoints after step 0 are too few" in printed
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "audit.csv", "audit_sequences.parquet", "audit.json", "validation.safetensors"
    }  # fmt: skip
    listed = next(line for line in printed.splitlines() if line.startswith(f"{tmp_path / 'out'}: "))
    assert set(listed.partition(": ")[2].split(", ")) == names


def test_without_data_the_embedded_text_is_named(run, tmp_path):
    code, printed = run_audit(run / "checkpoint-80", out=str(tmp_path / "out"))
    assert code == PASSED
    assert "text: docstrings of numpy " in printed and "see --data" in printed
    assert read_tokens(tmp_path / "out/validation.safetensors").shape == (8, 16)


def test_groups_and_lengths_fit_the_model(run, text, tmp_path):
    _, printed = run_audit(
        run / "checkpoint-80", data=text, out=str(tmp_path / "o"), length=512, sequences=4
    )
    assert "4 sequences of 16 tokens (this model takes no more; --length is 512)" in printed
    assert "int4_g128" in set(pd.read_csv(tmp_path / "o/audit.csv").quantizer)
    covered = json.loads((tmp_path / "o/audit.json").read_text())["coverage"]["int4_g128"]
    assert set(covered["narrowed"].values()) == {16, 64}


def test_as_it_would_ship(run, text, tmp_path):
    _, printed = run_audit(run / "checkpoint-80", data=text, out=str(tmp_path / "o"), deployed=True)
    assert "validation.safetensors, deployed.csv" in printed
    table = pd.read_csv(tmp_path / "o/deployed.csv").set_index("format")
    # The tiny model's rows of 16 are no whole blocks of a GGUF file.
    assert "16 inputs, no multiple of 32" in table.reason["gguf_q4_1"]
    assert (table.step == 80).all()


@pytest.fixture(scope="module")
def server(tokenizer_bytes):
    plain = {"main": model_branches((8,), ("safetensors",))["main"]}
    branches = model_branches((8,), ("safetensors",))
    plain = {"main": branches["step8"]}
    models = {"tiny/run": lazy_branches((8, 16), tokenizer_bytes), "tiny/plain": plain,
              "tiny/gated": branches}  # fmt: skip
    for step in (8, 16):
        models["tiny/run"][f"step{step}"]["tokenizer.json"] = tokenizer_bytes
    models["tiny/run"]["step24"] = {"README.md": b"no weights"}
    models["tiny/run"]["step32"] = dict(models["tiny/run"]["step16"])
    with TinyHub(models, gated=("tiny/gated",), token="hf_test") as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    server.requests.clear()
    point_at(monkeypatch, server, tmp_path / "home")
    return server


@pytest.fixture
def short_text(tmp_path):
    """Text whose every token is in the vocabulary of 64 of the hub's tiny models."""
    path = tmp_path / "short.txt"
    path.write_text("!" * 400)
    return str(path)


def test_a_hub_repository_is_audited_and_nothing_of_it_stays(hub, short_text, tmp_path):
    code, printed = run_audit(
        "tiny/run", data=short_text, out=str(tmp_path / "out"), sequences=2, batch_size=2
    )
    assert code == PASSED, printed
    assert "skipped: tiny/run at step24: it holds no weights" in printed
    assert pd.read_csv(tmp_path / "out/audit.csv").step.unique().tolist() == [8, 16, 32]
    assert not list((tmp_path / "out").rglob("model.safetensors"))


def test_revisions_of_a_hub_repository_by_name(hub, short_text, tmp_path):
    code, _ = run_audit(
        "tiny/run", revisions=("main",), data=short_text, out=str(tmp_path / "out"),
        sequences=2, batch_size=2,
    )  # fmt: skip
    assert code == PASSED
    assert pd.read_csv(tmp_path / "out/audit.csv").step.unique().tolist() == [0]


MISTAKES = {
    "no such place": ("no/such/place", {}, "neither a folder nor the name of a hub repository"),
    "misspelt folder": ("EMPTY/mine", {}, "EMPTY/mine: no such folder; EMPTY is one"),
    "empty folder": ("EMPTY", {}, "neither a model (no config.json) nor a run with folders like"),
    "no such revision": ("RUN", {"revisions": ("15",)}, "no checkpoint '15'; there are checkpoint"),
    "no such text": ("RUN", {"data": "nowhere.txt"}, "--data nowhere.txt: no such file"),
    "empty text": ("RUN", {"data": "EMPTY.txt"}, "EMPTY.txt: the file is empty"),
    "blank text": ("RUN", {"data": "BLANK.txt"}, "BLANK.txt: holds no documents"),
    "unknown ending": ("RUN", {"data": "BLANK.doc"}, "has no known ending; valid: .jsonl"),
    "little text": ("RUN", {"data": "LITTLE.txt"}, "tokens are fewer than one batch of 4 sequenc"),
    "no tokenizer": ("RUN", {"tokenizer": "EMPTY"}, "no tokenizer.json in"),
    "broken tokenizer": ("RUN", {"tokenizer": "BLANK.txt"}, "cannot be read as a tokenizer"),
    "no sequence": ("RUN", {"sequences": 0}, "--sequences 0: 2 or more"),
    "no device": ("RUN", {"device": "tpu"}, "--device tpu: not available here"),
    "no revisions on the hub": ("tiny/plain", {}, "tiny/plain: no branch is named like step1000"),
    "gated, no token": ("tiny/gated", {}, "tiny/gated at its list of branches: the repository is"),
    "no such repository": ("tiny/none", {}, "has no such repository, or it is private"),
    "no such branch": ("tiny/run", {"revisions": ("v2",)}, "tiny/run at v2: the hub has no such"),
    "twice": ("tiny/run", {"revisions": ("step8", "v8")}, "'step8' and 'v8' are both step 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_input_is_one_line(name, run, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "EMPTY.txt").write_text("")
    (tmp_path / "BLANK.txt").write_text(" \n\n ")
    (tmp_path / "BLANK.doc").write_text("words")
    (tmp_path / "LITTLE.txt").write_text("a few words")
    target, options, line = MISTAKES[name]
    code, printed = run_audit(run if target == "RUN" else target, **options)
    assert code == BAD_INPUT
    assert line in error_line(printed)


def test_a_damaged_checkpoint_is_skipped_unless_it_is_the_last(run, text, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    weights = load_model(run / "checkpoint-80")
    with torch.no_grad():
        next(iter(linear_weights(weights).values()))[0, 0] = float("nan")
    save_model(weights, copy / "checkpoint-30")
    code, printed = run_audit(copy, data=text, out=str(tmp_path / "out"))
    assert code == PASSED and "skipped: " in printed and "are not finite" in printed
    assert 30 not in pd.read_csv(tmp_path / "out/audit.csv").step.to_list()
    shutil.rmtree(copy / "checkpoint-80")
    shutil.copy(run / "checkpoint-80/tokenizer.json", copy)
    save_model(weights, copy / "checkpoint-90")
    code, printed = run_audit(copy, data=text, out=str(tmp_path / "out2"))
    assert code == BAD_INPUT and "are not finite" in error_line(printed)


def test_an_audit_that_ends_early_keeps_what_it_measured(run, text, tmp_path, monkeypatch):
    calls = []

    def probe(self, model, step):
        calls.append(step)
        if step == 40:
            raise FloatingPointError("step 40: a log-likelihood is not finite")
        return whole(self, model, step)

    whole = Prober.__call__
    monkeypatch.setattr(Prober, "__call__", probe)
    code, printed = run_audit(run, data=text, out=str(tmp_path / "out"))
    assert code == BAD_INPUT and calls == [10, 20, 30, 40]
    assert error_line(printed) == "Error: step 40: a log-likelihood is not finite"
    assert pd.read_csv(tmp_path / "out/audit.csv").step.unique().tolist() == [10, 20, 30]


def per_sequence(audited):
    """Per-sequence scores without noise whose means are those of an audit."""
    each = audited.loc[audited.index.repeat(4)].assign(
        sequence=np.tile(np.arange(4), len(audited)), scored=63
    )
    return each.assign(nll_nats=each.nll_nats_per_token * 63)


def invented(gap, steps=range(100, 3100, 100), half=0.1):
    """An audit with this low-bit gap in percent, FP32 loss lowest at step 1500."""
    rows = []
    for step in steps:
        nll = 2.5 + 0.8 * np.exp(-step / 200) + 1e-8 * (step - 1500) ** 2
        for role, value in (("fp32", 0.0), ("low_bit", gap(step)), ("high_bit", 0.01)):
            rows.append({
                "suite": "x", "step": step, "quantizer": role, "role": role,
                "nll_nats_per_token": nll + np.log1p(value / 100),
                "delta_nll_nats_per_token": np.log1p(value / 100), "ppl": np.exp(nll),
                "gap_pct": value, "gap_low_pct": value - half, "gap_high_pct": value + half,
            })  # fmt: skip
    return pd.DataFrame(rows)


def wiggle(step):
    return 1 + 0.02 * np.sin(step)


GAPS = {
    "explodes": (lambda s: 5 * wiggle(s) * np.exp(max(0, s - 2000) / 300), 0.1, True),
    "explodes within its error": (
        lambda s: 5 * wiggle(s) * np.exp(max(0, s - 2000) / 300), 1e4, False
    ),
    "grows steadily": (lambda s: wiggle(s) * np.exp(s / 1000), 0.1, False),
    "stays": (lambda s: 5 * wiggle(s), 0.1, False),
}  # fmt: skip


@pytest.mark.parametrize("name", GAPS)
def test_the_plateau_is_left_where_growth_sped_up_beyond_the_error(name):
    gap, half, left = GAPS[name]
    audited = invented(gap, half=half)
    verdict = judge(audited, per_sequence(audited), resamples=5)
    assert verdict.left is left
    words = "on its plateau" if name == "explodes within its error" else "no onset, so no plateau"
    assert verdict.words.startswith("has left its plateau" if left else words)
    if name == "explodes":
        assert 1900 <= verdict.phases["onset"]["step"] <= 2200


def test_the_exit_code_is_three_where_the_plateau_is_left(run, text, tmp_path, monkeypatch):
    audited = invented(GAPS["explodes"][0])
    verdict = judge(audited, per_sequence(audited), resamples=5)
    monkeypatch.setattr("flatminima.tools.audit.judge", lambda *a, **k: verdict)
    code, printed = run_audit(run / "checkpoint-80", data=text, out=str(tmp_path / "out"))
    assert code == LEFT_PLATEAU == 3
    assert "INT4 gap: has left its plateau: onset at step" in printed
    assert json.loads((tmp_path / "out/audit.json").read_text())["left_plateau"] is True


@pytest.mark.parametrize(
    ("steps", "spacing"),
    [
        ([0, 1, 2, 4, 8, 100, 200, 300, 400, 500, 600], 100),
        ([500, 1000, 1500, 1523], 500),
        ([3, 10, 17, 29], 1),
        ([1, 2, 4, 8, 16, 32], 1),
        ([5], 1),
    ],
)
def test_the_even_grid_of_steps(steps, spacing):
    assert even_spacing(np.array(steps)) == spacing


def test_too_few_checkpoints_are_undecided():
    audited = invented(lambda s: 5.0, steps=range(100, 600, 100))
    verdict = judge(audited, per_sequence(audited), resamples=5)
    assert verdict.left is None
    assert verdict.words == "undecided: 5 checkpoints after step 0 are too few, 6 are needed"


def test_the_table_lives_on_a_terminal():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    rows = synthetic.audit(short=True)
    with LiveTable(console, 2, "mine").shown() as table:
        for step in rows.step.unique()[1:3]:
            table.add(rows[rows.step == step])
    shown = console.file.getvalue()
    assert "mine: 2 of 2 checkpoints" in shown and "INT4 gap %" in shown


def test_names_of_steps(tmp_path, tokenizer_bytes):
    model = build_model(TINY, 300, seed=0)
    save_model(model, tmp_path / "run/checkpoints/step7")
    assert open_source(str(tmp_path / "run")).steps == [7]
    assert open_source(str(tmp_path / "run/checkpoints/step7")).steps == [7]


def test_the_command_itself(run, text, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(synthetic.ROOT / "workflow_scripts")}
    command = [sys.executable, "-m", "flatminima", "audit"]
    given = [str(run / "checkpoint-80"), "--data", text, "--sequences", "4", "--length", "16"]
    done = subprocess.run(
        [*command, *given],
        cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "audit-checkpoint-80/audit.csv").is_file()
    wrong = subprocess.run(
        [*command, "nowhere"], cwd=tmp_path, env=environment, text=True, capture_output=True,
        timeout=300,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "nowhere: neither a folder nor the name of a hub repository" in wrong.stdout
