"""The audit command: a run, one model, a hub repository; its answer; inputs that people have."""

import gzip
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
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

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
from tests.architectures import build
from tests.conftest import TINY
from tests.hub.libraries import point_at
from tests.hub.repos import lazy_branches, model_branches
from tests.hub.server import TinyHub

TEXT = "the weights of a model are rounded to few values and the loss is what it is\n\n" * 120
SMALL = {"sequences": 4, "length": 16, "resamples": 20}


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


@pytest.fixture
def audited(tmp_path, text):
    """Run an audit into ``tmp_path/out``; gives exit code, what was printed, and the record."""

    def run(target, **options):
        console = Console(file=io.StringIO(), width=100, force_terminal=False)
        given = {"data": text, "out": str(tmp_path / "out"), **SMALL, **options}
        code = audit(AuditOptions(str(target), **given), console)
        printed = console.file.getvalue()
        assert "Traceback" not in printed
        lines = printed.splitlines()
        errors = [line for line in lines if line.startswith("Error: ")]
        assert errors == (lines[-1:] if code == BAD_INPUT else [])
        record = tmp_path / "out/audit.json"
        return code, printed, json.loads(record.read_text()) if record.is_file() else {}

    return run


def steps_of(folder):
    return pd.read_csv(folder / "out/audit.csv").step.unique().tolist()


def test_a_run_is_audited_whole(run, audited, tmp_path):
    code, printed, record = audited(run)
    out = tmp_path / "out"
    assert code == PASSED and "checkpoint-85: no config.json" in printed
    assert printed.count("FP32 ppl") == 8 and "8/8: step 80," in printed
    table = pd.read_csv(out / "audit.csv")
    assert list(table.columns) == list(synthetic.audit(short=True).columns)
    assert table.step.unique().tolist() == list(range(10, 90, 10))
    assert table.lr_fraction.iloc[0] == 1.0 and table.lr.iloc[-1] == pytest.approx(0.002)
    sequences = pd.read_parquet(out / "audit_sequences.parquet")
    assert len(sequences) == 8 * 3 * 4
    # What was measured is what the workflow's probe measures.
    prober = Prober(str(out / "validation.safetensors"), record["probe"], torch.get_num_threads())
    own = prober(load_model(run / "checkpoint-40"), 40).reset_index(drop=True)
    stored = sequences[sequences.step == 40].reset_index(drop=True)
    pd.testing.assert_frame_equal(own, stored)
    assert "mine" in (out / "audit.svg").read_text()
    assert "\nINT4 gap: " in printed and "to ship at INT4: step " in printed.splitlines()[-1]


def test_the_same_audit_has_the_same_bytes(run, audited, tmp_path):
    written = []
    for _ in range(2):
        audited(run, revisions=("10", "checkpoint-80"))
        names = ("audit.csv", "audit.svg", "audit.json")
        written.append([(tmp_path / "out" / name).read_bytes() for name in names])
    assert written[0] == written[1] and steps_of(tmp_path) == [10, 80]


def test_one_model_has_a_row_and_no_curve(run, audited, tmp_path):
    audited(run, revisions=("10", "80"))
    shutil.copytree(run / "checkpoint-80", tmp_path / "copy/checkpoint-80")
    code, printed, _ = audited(run, revisions=("80",))
    assert code == PASSED and "undecided: 1 checkpoints" in printed
    # No figure of the earlier audit stays beside the new numbers.
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "audit.csv", "audit_sequences.parquet", "audit.json", "validation.safetensors"
    }  # fmt: skip


def test_without_data_the_embedded_text_is_named(run, audited, tmp_path):
    code, printed, _ = audited(run / "checkpoint-80", data=None)
    assert code == PASSED and "text: docstrings of numpy " in printed and "see --data" in printed
    assert read_tokens(tmp_path / "out/validation.safetensors").shape == (4, 16)


def test_lengths_fit_the_model(run, audited):
    _, printed, _ = audited(run / "checkpoint-80", length=512)
    assert "4 sequences of 16 tokens" in printed and "takes no more (--length is 512)" in printed


def test_as_it_would_ship(run, audited, tmp_path):
    _, printed, _ = audited(run / "checkpoint-80", deployed=True)
    table = pd.read_csv(tmp_path / "out/deployed.csv").set_index("format")
    # The tiny model's rows of 16 are no whole blocks of a GGUF file.
    assert "16 inputs, no multiple of 32" in table.reason["gguf_q4_1"]
    assert (table.step == 80).all()


# Hub repositories


@pytest.fixture(scope="module")
def server(tokenizer_bytes):
    branches = model_branches((8,), ("safetensors",))
    models = {"tiny/run": lazy_branches((8, 16), tokenizer_bytes), "tiny/gated": branches,
              "tiny/plain": {"main": branches["step8"]}}  # fmt: skip
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


def test_a_hub_repository_is_audited_and_each_revision_has_its_identity(
    hub, audited, short_text, tmp_path
):
    code, printed, record = audited("tiny/run", data=short_text, sequences=2, batch_size=2)
    assert code == PASSED, printed
    assert "tiny/run at step24: it holds no weights" in record["left_out"]["24"]
    assert steps_of(tmp_path) == [8, 16, 32]
    assert not list((tmp_path / "out").rglob("model.safetensors"))
    known = record["checkpoints"]
    assert known["8"]["commit"] == hub.commit("tiny/run", "step8") and known["8"]["files"]
    assert known["16"]["weights_sha256"] == known["32"]["weights_sha256"]
    assert record["notes"] == ["steps 16, 32 hold the same weights"]
    assert pd.read_csv(tmp_path / "out/audit.csv").step.nunique() == 3


def test_a_hub_that_ignores_the_revision_is_no_curve(hub, audited, short_text, tmp_path):
    code, printed, _ = audited("tiny/run", revisions=("step16", "step32"), data=short_text,
                               sequences=2, batch_size=2)  # fmt: skip
    assert code == BAD_INPUT and "all 2 checkpoints hold the same weights" in printed
    assert steps_of(tmp_path) == [16, 32], "what was measured stays"


MISTAKES = {
    "no such place": ("no/such/place", {}, "neither a folder nor the name of a hub repository"),
    "misspelt folder": ("EMPTY/mine", {}, "EMPTY/mine: no such folder; EMPTY is one"),
    "empty folder": ("EMPTY", {}, "neither a model (no config.json) nor a run with folders like"),
    "gguf": ("GGUF", {}, "already quantized"),
    "no such revision": ("RUN", {"revisions": ("15",)}, "no checkpoint '15'; there are checkpoint"),
    "no such text": ("RUN", {"data": "nowhere.txt"}, "--data nowhere.txt: no such file"),
    "blank text": ("RUN", {"data": "BLANK.txt"}, "BLANK.txt: holds no documents"),
    "cut text": ("RUN", {"data": "CUT.txt.gz"}, "CUT.txt.gz"),
    "unknown ending": ("RUN", {"data": "BLANK.doc"}, "has no known ending; valid: .jsonl"),
    "little text": ("RUN", {"data": "LITTLE.txt"}, "tokens are fewer than one batch of 4 sequenc"),
    "no tokenizer": ("RUN", {"tokenizer": "EMPTY"}, "no tokenizer.json in"),
    "broken tokenizer": ("RUN", {"tokenizer": "BLANK.txt"}, "BLANK.txt: is no tokenizer.json"),
    "no sequence": ("RUN", {"sequences": 0}, "--sequences 0: 2 or more"),
    "no device": ("RUN", {"device": "tpu"}, "--device tpu: not available here"),
    "no revisions on the hub": ("tiny/plain", {}, "tiny/plain: no branch is named like step1000"),
    "gated, no token": ("tiny/gated", {}, "tiny/gated at its list of branches: the repository is"),
    "no such branch": ("tiny/run", {"revisions": ("v2",)}, "tiny/run at v2: the hub has no such"),
    "twice": ("tiny/run", {"revisions": ("step8", "v8")}, "'step8' and 'v8' are both step 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_input_is_one_line(name, run, hub, audited, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("EMPTY", "GGUF"):
        (tmp_path / folder).mkdir()
    (tmp_path / "GGUF/model.gguf").write_bytes(b"GGUF")
    (tmp_path / "BLANK.txt").write_text(" \n\n ")
    (tmp_path / "BLANK.doc").write_text("words")
    (tmp_path / "LITTLE.txt").write_text("a few words")
    (tmp_path / "CUT.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:60])
    target, options, line = MISTAKES[name]
    code, printed, _ = audited(run if target == "RUN" else target, **options)
    assert code == BAD_INPUT and line in printed.splitlines()[-1]


# Checkpoints that people have


@pytest.fixture
def make(tmp_path, tokenizer_bytes):
    """Write checkpoints of a family with random weights, and the tokenizer beside them."""

    def write(family="llama", steps=(10, 20), change=None, **config):
        folder = tmp_path / "run"
        for step in steps:
            model = build(family, **{"vocab_size": 300, **config})
            with torch.no_grad():
                for number, parameter in enumerate(model.parameters()):
                    parameter.mul_(1 + step / 100 + number % 2)
                if change:
                    change(model, step)
            model.save_pretrained(folder / f"checkpoint-{step}")
        (folder / "tokenizer.json").write_bytes(tokenizer_bytes)
        return folder

    return write


def spoilt(how, at):
    def change(model, step):
        if step != at:
            return
        weight = model.model.layers[0].mlp.up_proj.weight
        if how == "nan":
            weight[3] = float("nan")
        if how == "huge weight":
            weight[0, 0], weight[0, 1] = 3e38, -3e38
        if how == "huge loss":
            model.lm_head.weight.mul_(3e5)
        if how == "overflow":
            model.lm_head.weight.mul_(1e38)
            model.model.norm.weight.mul_(1e3)

    return change


DIVERGED = [("huge loss", 20), ("overflow", 20), ("huge weight", 10), ("nan", 30)]


@pytest.mark.parametrize(("how", "at"), DIVERGED)
def test_a_diverged_checkpoint_is_named_wherever_it_stands(how, at, make, audited, tmp_path):
    folder = make(steps=(10, 20, 30), change=spoilt(how, at))
    code, printed, record = audited(folder)
    assert code == PASSED and steps_of(tmp_path) == [s for s in (10, 20, 30) if s != at]
    assert list(record["left_out"]) == [str(at)]
    assert f"checkpoint-{at}: step {at}: " in printed
    assert ("the last, could not be measured" in printed) == (at == 30)


def test_where_none_can_be_measured_it_is_one_line(make, audited):
    code, printed, _ = audited(make(change=spoilt("nan", 10), steps=(10,)))
    assert code == BAD_INPUT and len(printed.splitlines()) == 1


def edit_config(folder, **changes):
    for path in folder.glob("*/config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


REFUSED = {
    "gptq": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized (gptq)"),
    "bitsandbytes": ({"quantization_config": {"load_in_4bit": True}}, "already quantized"),
    "nested": ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "(fp8)"),
    "unknown family": ({"model_type": "martian"}, "cannot be read as a checkpoint"),
    "no family": ({"model_type": None}, "cannot be read as a checkpoint"),
    "other shapes": ({"hidden_size": 64}, "has shape"),
    "no number": ({"num_hidden_layers": "two"}, "checkpoint-10: step 10: "),
    "no activation": ({"hidden_act": "none of them"}, "checkpoint-10: step 10: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_loaded_is_one_line(name, make, audited):
    folder = make()
    changes, line = REFUSED[name]
    edit_config(folder, **changes)
    code, printed, _ = audited(folder)
    assert code == BAD_INPUT and line in printed.splitlines()[-1]


def test_weights_in_eight_bits_are_refused(make, audited):
    path = make(steps=(10,)) / "checkpoint-10/model.safetensors"
    tensors = {
        n: t.to(torch.float8_e4m3fn) if t.ndim > 1 else t for n, t in load_file(path).items()
    }
    save_file(tensors, path, metadata={"format": "pt"})
    code, printed, _ = audited(path.parent)
    assert code == BAD_INPUT and "stored as F8_E4M3" in printed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_in_shards_are_widened(dtype, make, audited, tmp_path):
    folder = make(steps=(10,)) / "checkpoint-10"
    model = load_model(folder).to(dtype)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").is_file()
    code, _, record = audited(folder)
    assert code == PASSED
    nll = pd.read_csv(tmp_path / "out/audit.csv").set_index("role").nll_nats_per_token["fp32"]
    ids = torch.from_numpy(read_tokens(tmp_path / "out/validation.safetensors")).long()
    with torch.no_grad():
        own = model.float()(input_ids=ids, labels=ids).loss.item()
    assert nll == pytest.approx(own, rel=1e-5) and len(
        record["checkpoints"]["10"]["weights_sha256"]
    )


def test_an_adapter_beside_a_model_is_not_passed_over(make, audited):
    folder = make()
    (folder / "checkpoint-10/adapter_config.json").write_text('{"peft_type": "LORA"}')
    code, printed, record = audited(folder)
    assert code == PASSED and "adapter" in record["left_out"]["10"] and "adapter" in printed


def test_a_model_above_its_checkpoints_is_said_and_can_be_asked_for(make, audited, tmp_path):
    folder = make()
    build("llama", vocab_size=300).save_pretrained(folder)
    code, _, record = audited(folder)
    assert code == PASSED and "itself holds a model" in record["notes"][0]
    audited(folder, revisions=(".",))
    assert steps_of(tmp_path) == [0]


def test_copies_of_one_checkpoint_are_said(make, audited, tmp_path):
    folder = make(steps=(10, 20))
    shutil.copytree(folder / "checkpoint-20", folder / "checkpoint-30")
    code, _, record = audited(folder)
    assert code == PASSED and record["notes"] == ["steps 20, 30 hold the same weights"]
    shutil.rmtree(folder / "checkpoint-10")
    code, printed, _ = audited(folder)
    assert code == BAD_INPUT and "all 2 checkpoints hold the same weights" in printed


def test_a_head_of_its_own_is_used_and_said(make, audited):
    folder = make(steps=(10,), tie_word_embeddings=True)
    path = folder / "checkpoint-10/model.safetensors"
    torch.manual_seed(7)
    save_file(load_file(path) | {"lm_head.weight": torch.randn(300, 32)}, path,
              metadata={"format": "pt"})  # fmt: skip
    _, _, record = audited(folder)
    assert "a head of its own" in record["peculiarities"][0]


def test_text_and_vision_in_one_configuration(make, audited):
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 16, "patch_size": 8}  # fmt: skip
    folder = make("gemma3", steps=(10,), vision_config=vision)
    code, printed, record = audited(folder)
    assert code == PASSED, printed
    covered = record["coverage"]["int8_channel"]
    assert covered["unread"] and all("vision" in n or "multi_modal" in n for n in covered["unread"])
    assert covered["weights"] + sum(covered["left"].values()) == covered["of"]


def test_a_model_of_masked_language_is_refused(make, audited):
    code, printed, _ = audited(make("bert"))
    assert code == BAD_INPUT and "looks ahead" in printed.splitlines()[-1]


def test_one_narrow_layer_has_its_own_group(make, audited, tmp_path):
    """Mamba reads the weight of ``dt_proj``, whose 2 inputs are the fewest, without calling it."""
    code, _, record = audited(make("mamba", steps=(10,)), group_size=16)
    covered = record["coverage"]["int4_g16"]
    assert code == PASSED and covered["narrowed"] == {"backbone.layers.*.mixer.dt_proj.weight": 2}
    assert not covered["unread"]


def test_the_end_of_text_is_the_tokenizers(make, audited, tmp_path):
    code, printed, _ = audited(make(steps=(10,), eos_token_id=2))
    assert code == PASSED and "eos_token_id of the configuration is 2" in printed
    assert "<|endoftext|> (id 0) between documents" in printed
    assert (read_tokens(tmp_path / "out/validation.safetensors") == 0).any()


def test_every_sequence_begins_as_the_tokenizer_begins_a_text(make, audited, tmp_path):
    folder = make(steps=(10,))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    first = tokenizer.id_to_token(7)
    tokenizer.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 7)])
    tokenizer.save(str(folder / "tokenizer.json"))
    code, printed, _ = audited(folder)
    assert code == PASSED and f"{first} before each sequence" in printed
    tokens = read_tokens(tmp_path / "out/validation.safetensors")
    assert tokens.shape == (4, 16) and (tokens[:, 0] == 7).all()


STATES = {
    "empty": "",
    "cut": '{"log_history": [{"loss": 5.1, "lear',
    "null": '{"log_history": null}',
    "no step": '{"log_history": [{"learning_rate": 0.001}]}',
    "text": '{"log_history": [{"learning_rate": "0.001", "step": 20}]}',
    "none": '{"log_history": [{"learning_rate": null, "step": 20}]}',
    "a list": "[1, 2]",
}


@pytest.mark.parametrize("name", STATES)
def test_a_damaged_trainer_state_costs_only_the_rates(name, make, audited, tmp_path):
    folder = make()
    (folder / "checkpoint-20/trainer_state.json").write_text(STATES[name])
    code, _, record = audited(folder)
    assert code == PASSED and "left empty" in record["notes"][0]
    assert pd.read_csv(tmp_path / "out/audit.csv").lr.isna().all()


def test_dollars_in_a_name_are_no_mathematics(make, audited, tmp_path):
    folder = make().rename(tmp_path / "budget_$5_vs_$10")
    code, _, _ = audited(folder)
    assert code == PASSED and "$5_vs_$10" in (tmp_path / "out/audit.svg").read_text()


def test_two_runs_never_share_a_folder(run, audited, tmp_path):
    code, printed, _ = audited(run, revisions=("10", "80"))
    assert code == PASSED, printed
    before = (tmp_path / "out/audit.csv").read_bytes()
    other = shutil.copytree(run / "checkpoint-30", tmp_path / "other")
    code, printed, _ = audited(other)
    assert code == BAD_INPUT and "name another folder with --out" in printed
    assert (tmp_path / "out/audit.csv").read_bytes() == before


# The answer


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


def test_the_exit_code_is_three_where_the_plateau_is_left(run, audited, monkeypatch, capsys):
    table = invented(GAPS["explodes"][0])
    verdict = judge(table, per_sequence(table), resamples=5)
    monkeypatch.setattr("flatminima.tools.audit.judge", lambda *a, **k: verdict)
    code, printed, record = audited(run / "checkpoint-80", json=True)
    assert code == LEFT_PLATEAU == 3 and record["left_plateau"] is True
    assert "INT4 gap: has left its plateau: onset at step" in printed
    told = json.loads(capsys.readouterr().out)
    assert told["left_plateau"] is True and len(told["rows"]) == 3


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
