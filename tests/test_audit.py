"""The audit command: a run, one model, a hub repository; its answer; inputs that people have."""

import gzip
import json
import re
import resource
import shutil

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from flatminima import gap_figure
from flatminima.__main__ import main
from flatminima.device import choose_threads
from flatminima.errors import Terminated, UserError
from flatminima.model import build_model, load_model, save_model
from flatminima.quantizers import linear_weights
from flatminima.scoring import Prober
from flatminima.text.tokens import read_tokens, train_tokenizer, write_tokens
from flatminima.tools.audit import COLUMNS
from flatminima.tools.audit_answers import Verdict, answers, even_spacing, harmful_since, judge
from flatminima.tools.sources import learning_rates, open_source
from tests import synthetic
from tests.architectures import build
from tests.conftest import PROBE, TINY
from tests.hub.repos import model_branches
from tests.hub.server import TinyHub, point_at
from workflow_scripts import gather_audit

TEXT = "the weights of a model are rounded to few values and the loss is what it is\n\n" * 120
SMALL = {"sequences": 4, "length": 16, "resamples": 20}
PASSED = 0
BAD_INPUT = 2
LEFT_PLATEAU = 3


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
def audited(tmp_path, text, capsys):
    """Run the command into ``tmp_path/out``; gives exit code, what it printed, and the record."""

    def run(target, **options):
        all_options = {"data": text, "out": tmp_path / "out", **SMALL, **options}
        arguments = [
            ["--" + name.replace("_", "-"), *(v if isinstance(v, tuple) else [v])]
            for name, v in all_options.items()
            if v not in (None, True)
        ]
        flags = [f"--{name}" for name, value in all_options.items() if value is True]
        capsys.readouterr()
        code = main(["audit", str(target), *map(str, sum(arguments, [])), *flags])
        out, err = capsys.readouterr()
        errors = [line for line in (out + err).splitlines() if line.startswith("Error: ")]
        assert len(errors) == (code == BAD_INPUT)
        record = tmp_path / "out/audit.json"
        return code, out or err, json.loads(record.read_text()) if record.is_file() else {}

    return run


def steps_of(folder):
    return pd.read_csv(folder / "out/audit.csv").step.unique().tolist()


def test_a_run_is_audited_whole(run, audited, tmp_path):
    code, printed, record = audited(run)
    out = tmp_path / "out"
    assert code == PASSED and "checkpoint-85: no config.json" in printed
    lines = printed.splitlines()
    head = next(n for n, line in enumerate(lines) if "INT4 gap %" in line)
    assert [int(line.split()[0]) for line in lines[head + 1 : head + 9]] == [*range(10, 90, 10)]
    table = pd.read_csv(out / "audit.csv")
    assert list(table.columns) == list(synthetic.audit(short=True).columns)
    assert table.step.unique().tolist() == list(range(10, 90, 10))
    assert table.lr_fraction.iloc[0] == 1.0 and table.lr.iloc[-1] == pytest.approx(0.002)
    sequences = pd.read_parquet(out / "audit_sequences.parquet")
    assert len(sequences) == 8 * 3 * 4
    # What was measured is what the workflow's probe measures.
    prober = Prober(str(out / "validation.safetensors"), record["probe"], torch.get_num_threads())
    expected_scores = prober(load_model(run / "checkpoint-40"), 40).reset_index(drop=True)
    stored = sequences[sequences.step == 40].reset_index(drop=True)
    pd.testing.assert_frame_equal(expected_scores, stored)
    # It ends in what a trainer asks; scripts get the same as JSON, readers as one page.
    assert lines[-5:] == record["answers"] and lines[-5].startswith("Cost now: ")
    best = table.loc[table[table.role == "low_bit"].ppl.idxmin()]
    assert f"INT4 step {best.step} (perplexity {best.ppl:.2f})" in lines[-1]
    page = (out / "audit.html").read_text()
    assert all(text in page for text in ("<svg", *record["answers"], "quantized", *COLUMNS))
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert "mine" in (out / "audit.svg").read_text()


def test_the_same_audit_has_the_same_bytes(run, audited, tmp_path):
    written = []
    for _ in range(2):
        _, told, record = audited(run, revisions=("10", "checkpoint-80"), json=True)
        names = ("audit.csv", "audit.svg", "audit.json", "audit.html")
        written.append([(tmp_path / "out" / name).read_bytes() for name in names])
    assert written[0] == written[1] and steps_of(tmp_path) == [10, 80]
    told = json.loads(told)
    assert told["answers"] == record["answers"] and len(told["rows"]) == 6


def test_one_model_without_text_of_its_own_as_it_would_ship(run, audited, tmp_path):
    audited(run, revisions=("10", "80"))
    code, printed, _ = audited(run, revisions=("80",), data=None, length=512, deployed=True)
    assert code == PASSED and "cannot be told" in printed
    assert "text: docstrings of numpy " in printed and "see --data" in printed
    assert "4 sequences of 16 tokens" in printed and "takes no more (--length is 512)" in printed
    assert read_tokens(tmp_path / "out/validation.safetensors").shape == (4, 16)
    # No figure of the earlier audit stays beside the new numbers.
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "audit.csv",
        "audit_sequences.parquet",
        "audit.json",
        "audit.html",
        "validation.safetensors",
        "deployed.csv",
    }
    table = pd.read_csv(tmp_path / "out/deployed.csv").set_index("format")
    # The tiny model's rows of 16 are no whole blocks of a GGUF file.
    assert "16 inputs" in table.reason["gguf_q4_1"]
    assert (table.step == 80).all()


def test_further_quantizers_are_columns_answers_and_lines_of_the_figure(run, audited, tmp_path):
    code, printed, record = audited(
        run, revisions=("10", "80"), quantizer=("int3_g8", "nf4"), threads=1, harm=0.5
    )
    assert code == PASSED
    table = pd.read_csv(tmp_path / "out/audit.csv")
    assert table.role.unique().tolist() == ["fp32", "low_bit", "high_bit", "int3_g8", "nf4"]
    for part in ("int3_g8 gap %", "Cost now: nf4 at step 80", "above 0.5 %", "int3_g8 step "):
        assert (
            part in printed
            and part.replace("'", "&#39;") in (tmp_path / "out/audit.html").read_text()
        )
    assert record["threads"] == 1 and "INT3" in (tmp_path / "out/audit.svg").read_text()
    assert audited(run, quantizer=("int9_g8",))[0] == BAD_INPUT


def stop_at(monkeypatch, line_start, error):
    """Raise ``error`` once, when the line that begins so is printed."""
    printed = []

    def write(line):
        printed.append(line)
        if line.strip().startswith(line_start) and error.args:
            error.args = ()
            raise error
        print(line)

    monkeypatch.setattr("flatminima.tools.audit.tqdm.write", write)


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt("x"), 130), (Terminated("x"), 143), (BrokenPipeError("x"), 141)],
)
def test_an_audit_that_is_stopped_keeps_what_it_printed(
    run, audited, tmp_path, monkeypatch, error, code
):
    stop_at(monkeypatch, "30 ", error)
    assert audited(run)[0] == code
    out = tmp_path / "out"
    assert steps_of(tmp_path) == [10, 20, 30]
    assert len(pd.read_parquet(out / "audit_sequences.parquet")) == 3 * 3 * 4
    page = (out / "audit.html").read_text()
    assert "3 of 8 checkpoints" in page and "<svg" in page
    assert "stopped" in json.loads((out / "audit.json").read_text())


@pytest.mark.parametrize("kibibytes", [40, 12])
def test_a_full_disk_is_one_line_with_the_file_and_no_part_of_a_file(
    run, audited, tmp_path, kibibytes
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kibibytes * 1024, limits[1]))
    try:
        code, printed, _ = audited(run, revisions=("10", "80"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = printed.splitlines()[-1]
    assert code == BAD_INPUT and "too large" in error and "audit." in error
    assert "Cost now: " in printed and steps_of(tmp_path) == [10, 80]
    out = tmp_path / "out"
    assert not (out / "audit.svg").exists() and not list(out.glob(".*.tmp"))
    assert (out / "audit.html").read_text().rstrip().endswith("</html>")


def test_a_matplotlibrc_that_asks_for_latex_does_not_count(run, audited, tmp_path):
    with matplotlib.rc_context({"text.usetex": True, "figure.dpi": 7, "axes.grid": True}):
        assert audited(run, revisions=("10", "80"))[0] == PASSED
    drawn = (tmp_path / "out/audit.png").read_bytes()
    assert audited(run, revisions=("10", "80"))[0] == PASSED
    assert (tmp_path / "out/audit.png").read_bytes() == drawn


def test_threads_are_chosen_by_the_size_of_the_model_and_the_load(monkeypatch):
    small, large = (torch.nn.Linear(size, size) for size in (16, 2400))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    for model, load, threads in ((small, 0.0, 1), (large, 0.0, 8), (large, 5.2, 3), (large, 30, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert choose_threads(model)[0] == threads


def test_learning_rates_are_those_of_the_whole_log_whatever_its_steps(run, audited, tmp_path):
    """Logged every 7 steps, saved every 10: the highest rate lies between two checkpoints."""
    shutil.copytree(run, tmp_path / "run")
    log = [
        {"step": step, "learning_rate": 0.01 - abs(step - 14) * 1e-4} for step in range(7, 80, 7)
    ]
    state = tmp_path / "run/checkpoint-80/trainer_state.json"
    state.write_text(json.dumps({"log_history": log}))
    rates, [note] = learning_rates(open_source(str(tmp_path / "run")))
    assert len(rates) == 11 and max(rates.values()) == 0.01 and "7 of 8 checkpoints" in note
    table, sequences = invented(flat, steps=(10, 20, 30))
    phases = judge(table, sequences, 5).phases
    table = table.assign(lr_fraction=np.nan)
    for logged, panels in ((rates, 3), ({}, 2)):
        figure = gap_figure.draw(table, phases, suite={"label": "x"}, rates=logged)
        assert len(figure.axes) == panels
    state.write_text(json.dumps({"log_history": []}))
    code, printed, _ = audited(tmp_path / "run", revisions=("10", "80"))
    assert code == PASSED and "no learning rates" in printed
    assert "% of max" not in (tmp_path / "out/audit.svg").read_text()


# Hub repositories


@pytest.fixture
def hub(tokenizer_bytes, monkeypatch, tmp_path):
    branches = model_branches((8, 16), ("safetensors",))
    own = {name: files | {"tokenizer.json": tokenizer_bytes} for name, files in branches.items()}
    own |= {"step24": {"README.md": b"no weights"}, "step32": own["step16"]}
    models = {"tiny/run": own, "tiny/gated": branches, "tiny/plain": {"main": branches["step8"]}}
    with TinyHub(models, gated=("tiny/gated",), token="hf_test") as server:
        point_at(monkeypatch, server, tmp_path / "home")
        yield server


def test_a_hub_repository_is_audited_and_each_revision_has_its_identity(hub, audited, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("!" * 400)  # whose every token is in the models' vocabulary of 64
    small = {"data": text, "sequences": 2, "batch_size": 2}
    code, printed, record = audited("tiny/run", **small)
    assert code == PASSED, printed
    assert "tiny/run at step24: it has no weights" in record["left_out"]["24"]
    assert steps_of(tmp_path) == [8, 16, 32]
    assert not list((tmp_path / "out").rglob("model.safetensors"))
    checkpoints = record["checkpoints"]
    assert (
        checkpoints["8"]["commit"] == hub.commit("tiny/run", "step8") and checkpoints["8"]["files"]
    )
    assert checkpoints["16"]["weights_sha256"] == checkpoints["32"]["weights_sha256"]
    assert record["notes"] == ["steps 16, 32 hold the same weights"]
    # Where all are the same, the hub ignores the revision.
    code, printed, _ = audited("tiny/run", revisions=("step16", "step32"), **small)
    assert code == BAD_INPUT and "all 2 checkpoints hold the same weights" in printed
    assert steps_of(tmp_path) == [16, 32], "what was measured stays"


MISTAKES = {
    "no such place": ("no/such/place", {}, "neither a folder nor the name of a hub repository"),
    "misspelt folder": ("EMPTY/mine", {}, "EMPTY/mine: no such folder; EMPTY is one"),
    "empty folder": ("EMPTY", {}, "neither a model (no config.json) nor a run with folders like"),
    "gguf": ("GGUF", {}, "already quantized"),
    "no such revision": ("RUN", {"revisions": ("15",)}, "no checkpoint '15'; valid: checkpoint"),
    "no such text": ("RUN", {"data": "nowhere.txt"}, "--data nowhere.txt: no such file"),
    "cut text": ("RUN", {"data": "CUT.txt.gz"}, "CUT.txt.gz"),
    "little text": ("RUN", {"data": "LITTLE.txt"}, "tokens; 4 sequences of 16 need 64"),
    "no tokenizer": ("RUN", {"tokenizer": "EMPTY"}, "no tokenizer.json in"),
    "broken tokenizer": ("RUN", {"tokenizer": "LITTLE.txt"}, "LITTLE.txt: not a tokenizer.json"),
    "no sequence": ("RUN", {"sequences": 0}, "--sequences 0"),
    "no device": ("RUN", {"device": "tpu"}, "'tpu' is not available"),
    "no revisions on the hub": ("tiny/plain", {}, "tiny/plain: none of 1 branches fits"),
    "gated, no token": ("tiny/gated", {}, "tiny/gated at its list of branches: the repository is"),
    "no such branch": ("tiny/run", {"revisions": ("v2",)}, "tiny/run at v2: the hub has no such"),
    "twice": ("tiny/run", {"revisions": ("step8", "v8")}, "'step8' and 'v8' are both step 8"),
}


def test_bad_input_is_one_line(run, hub, audited, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("EMPTY", "GGUF"):
        (tmp_path / folder).mkdir()
    (tmp_path / "GGUF/model.gguf").write_bytes(b"GGUF")
    (tmp_path / "LITTLE.txt").write_text("a few words")
    (tmp_path / "CUT.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:60])
    for name, (target, options, line) in MISTAKES.items():
        code, printed, _ = audited(run if target == "RUN" else target, **options)
        assert code == BAD_INPUT and line in printed.splitlines()[-1], name


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


def test_what_a_configuration_says_of_the_output_does_not_count(make, audited, tmp_path):
    folder = make(steps=(10, 20))
    gaps = []
    for flags in ({}, {"return_dict": False}, {"output_hidden_states": True}):
        edit(folder / "checkpoint-20", **flags)
        code, _, _ = audited(folder, revisions=("20",))
        assert code == PASSED
        gaps.append((tmp_path / "out/audit.csv").read_bytes())
    assert gaps[0] == gaps[1] == gaps[2]


def test_a_number_that_is_text_is_named(make, audited):
    folder = make(steps=(10,))
    edit(folder / "checkpoint-10", rms_norm_eps="1e-5")
    code, printed, _ = audited(folder)
    assert code == BAD_INPUT and "rms_norm_eps is the text '1e-5'" in printed


def test_a_table_of_positions_that_is_too_short_is_one_line_with_the_length(
    tiny_model, tiny_tokens, tmp_path, monkeypatch
):
    write_tokens(tmp_path / "validation.safetensors", tiny_tokens)
    prober = Prober(str(tmp_path / "validation.safetensors"), PROBE, 1)
    table = torch.nn.Embedding(8, 4)
    own_forward = tiny_model.forward

    def forward(input_ids, **options):
        table(torch.arange(input_ids.shape[1]))
        return own_forward(input_ids, **options)

    monkeypatch.setattr(tiny_model, "forward", forward)
    with pytest.raises(UserError, match=f"{tiny_tokens.shape[1]} tokens.*--length"):
        prober(tiny_model, 10)


def test_folders_of_other_trainers_are_measured_and_what_is_left_is_named(make, tmp_path):
    folder = make(steps=(10, 20))
    names = ("checkpoint_{}", "step-{:08d}", "global_step_{}", "iter_{:07d}")
    for number, name in enumerate(names):
        for step in (1000, 2000):
            place = tmp_path / str(number) / name.format(step)
            shutil.copytree(folder / f"checkpoint-{step // 100}", place)
        assert open_source(str(tmp_path / str(number))).steps == [1000, 2000], name
    shutil.copytree(folder / "checkpoint-10", tmp_path / "lightning/epoch=1-step=10")
    with pytest.raises(UserError, match="epoch=1-step=10 contain models, but their names"):
        open_source(str(tmp_path / "lightning"))
    for other in ("final", "step_300"):
        shutil.copytree(folder / "checkpoint-10", folder / other)
    source = open_source(str(folder))
    [note] = [note for note in source.notes if "not measured" in note]
    assert source.steps == [10, 20] and "final, step_300" in note and "checkpoint-N" in note


def spoil(model, step):
    """Weights, losses or logits that are not finite, or whose perplexity is not."""
    weight = model.model.layers[0].mlp.up_proj.weight
    head = model.lm_head.weight
    if step in (5, 60):
        weight[3] = float("nan")
    if step == 40:
        weight[0, :2] = torch.tensor([3e38, -3e38])
    if step in (20, 30):  # a huge loss, and logits that overflow
        head.mul_({20: 3e5, 30: 1e38}[step])
        model.model.norm.weight.mul_({20: 1, 30: 1e3}[step])


def test_a_diverged_checkpoint_is_named_wherever_it_stands(make, audited, tmp_path):
    folder = make(steps=(5, 10, 20, 30, 40, 50, 60), change=spoil)
    code, printed, record = audited(folder)
    assert code == PASSED and steps_of(tmp_path) == [10, 50]
    assert list(record["left_out"]) == ["5", "20", "30", "40", "60"]
    assert all(f"checkpoint-{step}: step {step}: " in printed for step in record["left_out"])
    assert "step 60, the last, could not be measured" in record["answers"][0]
    # Where none can be measured it is one line; so it is in a suite.
    code, printed, _ = audited(folder, revisions=("60",))
    assert code == BAD_INPUT and len(printed.splitlines()) == 1
    pd.DataFrame({"step": []}).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "s.json").write_text(json.dumps({"left_out": record["left_out"]}))
    files = [tmp_path / "t.csv"], [tmp_path / "s.parquet"], [tmp_path / "s.json"]
    with pytest.raises(UserError, match="mine: none of its 5 checkpoints could be .*point-5: .*"):
        gather_audit.main(*files, "mine", None, 60, None, "a.csv", "a.pq")


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def replace(folder, change):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def as_float8(folder):
    replace(
        folder, lambda w: {n: t.to(torch.float8_e4m3fn) if t.ndim > 1 else t for n, t in w.items()}
    )


def as_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def masked(folder):
    shutil.rmtree(folder)
    build("bert", vocab_size=300).save_pretrained(folder)


# What stands in a folder, and a word of the line that says why it is not measured.
REFUSED = [
    (lambda f: edit(f, quantization_config={"quant_method": "gptq", "bits": 4}), "(gptq)"),
    (lambda f: edit(f, text_config={"quantization_config": {"quant_method": "fp8"}}), "(fp8)"),
    (as_float8, "stored as F8_E4M3"),
    (lambda f: edit(f, model_type="martian"), "cannot be read as a checkpoint"),
    (lambda f: edit(f, hidden_size=64), "has shape"),
    (lambda f: edit(f, num_attention_heads=3), "step "),
    (written("config.json", b'{"model_type": "lla'), "config.json"),
    (written("adapter_config.json", b'{"peft_type": "LORA"}'), "an adapter"),
    (masked, "looks ahead"),
]
SKIPPED = [
    (as_pickle, "pytorch_model.bin"),
    (written("model.safetensors", b"version https://git-lfs.github.com/spec/v1"), "is incomplete"),
]


def test_what_cannot_be_measured_is_a_named_row_and_the_others_go_on(make, audited, tmp_path):
    kinds = REFUSED + SKIPPED
    folder = make(steps=(10, 20 + len(kinds)))
    for number in range(len(kinds)):
        shutil.copytree(folder / "checkpoint-10", folder / f"checkpoint-{20 + number}")
    for number, (spoil, _) in enumerate(kinds):
        spoil(folder / f"checkpoint-{20 + number}")
    code, printed, record = audited(folder)
    assert code == PASSED and steps_of(tmp_path) == [10, 20 + len(kinds)]
    for number, (_, key_words) in enumerate(kinds):
        [line] = [li for li in printed.splitlines() if f"checkpoint-{20 + number}: " in li]
        assert key_words in line and "Error(" not in line
        assert (str(20 + number) in record["left_out"]) == (number < len(REFUSED))
    # Alone, each is the end of the audit.
    code, printed, _ = audited(folder, revisions=(str(19 + len(REFUSED)),))
    assert code == BAD_INPUT and "looks ahead" in printed.splitlines()[-1]


def test_wider_and_narrower_floats_in_shards_are_float32(make, audited, tmp_path):
    folder = make(steps=(10, 20, 30))
    models = {}
    for step, dtype in ((10, torch.bfloat16), (20, torch.float16), (30, torch.float64)):
        place = folder / f"checkpoint-{step}"
        models[step] = load_model(place).to(dtype)
        (place / "model.safetensors").unlink()
        models[step].save_pretrained(place, max_shard_size="20KB")
    code, _, record = audited(folder)
    [note] = record["notes"]
    assert code == PASSED and "no learning rates" in note, "three models, and no log"
    fp32_rows = pd.read_csv(tmp_path / "out/audit.csv").query("role == 'fp32'").set_index("step")
    ids = torch.from_numpy(read_tokens(tmp_path / "out/validation.safetensors")).long()
    for step, model in models.items():
        expected_loss = model.float()(input_ids=ids, labels=ids).loss.item()
        assert fp32_rows.nll_nats_per_token[step] == pytest.approx(expected_loss, rel=1e-5)


def test_a_model_above_its_checkpoints_is_said_and_can_be_asked_for(make, audited, tmp_path):
    folder = make()
    build("llama", vocab_size=300).save_pretrained(folder)
    code, _, record = audited(folder)
    assert code == PASSED and "itself contains a model" in record["notes"][0]
    audited(folder, revisions=(".",))
    assert steps_of(tmp_path) == [0]


def test_models_of_many_kinds_are_measured_and_described(make, audited):
    folder = make(steps=(10,), tie_word_embeddings=True)
    torch.manual_seed(7)
    replace(folder / "checkpoint-10", lambda w: w | {"lm_head.weight": torch.randn(300, 32)})
    _, _, record = audited(folder)
    assert "a head of its own" in record["peculiarities"][0]
    # Text and vision in one configuration.
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    code, printed, record = audited(make("gemma3", steps=(10,), vision_config=vision))
    assert code == PASSED, printed
    covered = record["coverage"]["int8_channel"]
    assert covered["unread"] and all("vision" in n or "multi_modal" in n for n in covered["unread"])
    # The order of a set would differ from process to process.
    assert len(covered["unread"]) > 5 and list(covered["unread"]) == sorted(covered["unread"])
    assert covered["weights"] + sum(covered["left"].values()) == covered["of"]
    # Mamba reads the weight of dt_proj, whose 2 inputs are the fewest, without calling it.
    code, _, record = audited(make("mamba", steps=(10,)), group_size=16)
    covered = record["coverage"]["int4_g16"]
    assert code == PASSED and covered["narrowed"] == {"backbone.layers.*.mixer.dt_proj.weight": 2}
    assert not covered["unread"]

    ones = lambda model, step: [w.fill_(1 / 8) for w in linear_weights(model).values()]  # noqa: E731
    _, _, record = audited(make(steps=(10,), change=ones))
    assert "gap of exactly 0 %" in record["notes"][0]


def test_documents_end_and_sequences_begin_as_the_tokenizer_says(make, audited, tmp_path):
    folder = make(steps=(10,))
    for configured, printed_id in ((2, 2), ([], None), ([5, 0], 5), (0, None)):
        edit(folder / "checkpoint-10", eos_token_id=configured)
        code, printed, _ = audited(folder)
        assert code == PASSED and "<|endoftext|> (id 0) between documents" in printed
        assert (
            f"eos_token_id of the configuration is {printed_id}" if printed_id else "(id 0)"
        ) in printed
        assert ("eos_token_id" in printed) == (printed_id is not None)
        assert (read_tokens(tmp_path / "out/validation.safetensors") == 0).any()
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    first = tokenizer.id_to_token(7)
    tokenizer.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 7)])
    tokenizer.save(path)
    assert f"{first} before each sequence" in audited(folder)[1]
    assert (read_tokens(tmp_path / "out/validation.safetensors")[:, 0] == 7).all()


def test_a_damaged_trainer_state_costs_only_the_rates(make, audited, tmp_path):
    folder = make(steps=(20,))
    for state in (
        "",
        "[1, 2]",
        '{"log_history": [{"loss": 5.1, "lear',
        '{"log_history": null}',
        '{"log_history": [{"learning_rate": 0.001}]}',
        '{"log_history": [{"learning_rate": null, "step": 20}]}',
    ):
        (folder / "checkpoint-20/trainer_state.json").write_text(state)
        code, _, record = audited(folder)
        assert code == PASSED and "left empty" in record["notes"][0], state
        assert pd.read_csv(tmp_path / "out/audit.csv").lr.isna().all()


def test_a_run_of_one_name_is_not_another(make, audited, tmp_path):
    folder = make().rename(tmp_path / "budget_$5_vs_$10")
    code, _, _ = audited(folder)
    # Dollars in a name are no mathematics.
    assert code == PASSED and "$5_vs_$10" in (tmp_path / "out/audit.svg").read_text()
    before = (tmp_path / "out/audit.csv").read_bytes()
    for damage in ("", " of damage"):
        code, printed, _ = audited(shutil.copytree(folder, tmp_path / f"other{damage}"))
        assert code == BAD_INPUT and "name another folder with --out" in printed
        (tmp_path / "out/audit.json").write_text("[]")
    assert (tmp_path / "out/audit.csv").read_bytes() == before


# The answer


def invented(gap, steps=range(100, 3100, 100), half=0.1):
    """An audit with this low-bit gap in percent, FP32 loss lowest at step 1500, and its scores."""
    keys = pd.MultiIndex.from_product([steps, ("fp32", "low_bit", "high_bit")])
    table = keys.to_frame(index=False, name=["step", "role"])
    gaps = {"fp32": lambda step: 0.0, "low_bit": gap, "high_bit": lambda step: 0.01}
    value = pd.Series([gaps[role](step) for step, role in keys])
    fp32 = 2.5 + 0.8 * np.exp(-table.step / 200) + 1e-8 * (table.step - 1500) ** 2
    table = table.assign(
        suite="x",
        quantizer=table.role,
        tokens_seen=np.nan,
        ppl=np.exp(fp32),
        nll_nats_per_token=fp32 + np.log1p(value / 100),
        gap_pct=value,
        gap_low_pct=value - half,
        delta_nll_nats_per_token=np.log1p(value / 100),
        gap_high_pct=value + half,
    )
    per_sequence = table.merge(pd.DataFrame({"sequence": range(4)}), how="cross").assign(scored=63)
    return table, per_sequence.assign(nll_nats=per_sequence.nll_nats_per_token * 63)


def explodes(step):
    return 5 * (1 + 0.02 * np.sin(step)) * np.exp(max(0, step - 2000) / 300)


def steady(step):
    """A gap that grows by the same factor per step throughout."""
    return (1 + 0.02 * np.sin(step)) * np.exp(step / 1000)


def flat(step):
    return 5 + 0.1 * np.sin(step)


def test_the_plateau_is_left_where_growth_sped_up_beyond_the_error(run, audited, monkeypatch):
    for gap, half_width, verdict in (
        (explodes, 0.1, Verdict.LEFT_PLATEAU),
        (explodes, 1e4, Verdict.ON_PLATEAU),
        (steady, 0.1, Verdict.NO_ONSET),
        (flat, 0.1, Verdict.NO_ONSET),
    ):
        judgement = judge(*invented(gap, half=half_width), 5)
        assert judgement.verdict is verdict
        assert judgement.left_plateau is (verdict is Verdict.LEFT_PLATEAU)

    judgement = judge(*invented(explodes), 5)
    assert 1900 <= judgement.phases["onset"]["step"] <= 2200
    monkeypatch.setattr("flatminima.tools.audit.judge", lambda *_: judgement)
    code, printed, record = audited(run / "checkpoint-80")
    assert code == LEFT_PLATEAU
    assert record["left_plateau"] is True
    assert record["verdict"] == judgement.sentence
    assert judgement.explanation in printed and "Accelerating: yes" in printed


def answers_of(table, sequences, harm_pct=1.0):
    return answers(table, judge(table, sequences, 5), harm_pct)


def test_the_answers_are_those_of_the_curve():
    table, sequences = invented(lambda step: 1e-3 * step)
    cost, since, acceleration, convergence, best = answers_of(table, sequences)
    fp32 = table[table.role == "fp32"].set_index("step").ppl
    quantized = table[table.role == "low_bit"].set_index("step").ppl
    assert "step 3,000" in cost and "3.00 %" in cost and "2.90 to 3.10" in cost
    assert "0.0296 nats" in cost
    # The interval of a cost of 0.001 % per step is 0.1 points on either side.
    assert "step 1,200;" in since and "above 1 %" in since
    assert "step 2,700;" in answers_of(table, sequences, harm_pct=2.55)[1]
    assert "not yet" in answers_of(table, sequences, harm_pct=5.0)[1]
    assert f"step {judge(table, sequences, 5).phases['convergence']['step']:,}" in convergence
    assert acceleration.startswith("Accelerating: no") and "follows its power law" in acceleration
    assert f"INT4 step {quantized.idxmin():,} (perplexity {quantized.min():.2f})" in best
    assert f"FP32 step {fp32.idxmin():,} (perplexity {fp32.min():.2f})" in best


def test_int4_hurts_from_the_step_after_which_it_never_stops():
    low = pd.DataFrame({"gap_low_pct": [2.0, 0.5, 1.5, 0.9, 1.1, 3.0]}, range(10, 70, 10))
    assert harmful_since(low, 1.0) == 50
    assert harmful_since(low, 0.4) == 10
    assert harmful_since(low, 3.0) is None
    assert "the first checkpoint" in answers_of(*invented(lambda _: 5.0))[1]
    # A single checkpoint below the limit is not the whole answer.
    for dip, start in ((2900, "step 3,000"), (3000, "not yet")):
        line = answers_of(*invented(lambda step, dip=dip: 0.5 if step == dip else 5.0))[1]
        assert start in line and "of 29 checkpoints before, first at step 100" in line


def test_growth_is_judged_where_the_gap_explodes_and_not_from_two_checkpoints():
    assert answers_of(*invented(explodes))[2].startswith("Accelerating: yes; onset at step ")
    unclear, converged = answers_of(*invented(lambda _: 5.0, steps=(100, 200)))[2:4]
    assert unclear.startswith("Accelerating: cannot be told") and not re.search(r"\d", unclear)
    assert "cannot be told from 2" in converged


def test_a_gap_that_may_be_zero_is_not_called_a_rise_and_a_gain_is_one():
    cost = answers_of(*invented(lambda _: -0.05))[0]
    assert "-0.05 %" in cost and "raises" not in cost and "may be zero" in cost
    gain = answers_of(*invented(lambda _: -0.5))[0]
    assert "lowers perplexity by 0.50 %" in gain and "may be zero" not in gain


@pytest.mark.parametrize("count", [6, 20])
def test_the_last_checkpoint_counts_also_off_the_grid(count):
    """The Trainer saves once more at its end, here at 550 or 1,950 steps of a grid of 100."""
    last = 100 * count - 50
    steps = [*range(100, last, 100), last]
    table, sequences = invented(lambda step: 5.0, steps=steps)
    earlier = {6: 400, 20: 1400}[count]
    for best_step, answer in ((last, "not yet"), (earlier, f"at step {earlier:,};")):
        nll = 3.0 + 1e-4 * (table.step - best_step).abs()
        better = table.assign(nll_nats_per_token=nll, ppl=np.exp(nll))
        scores = sequences.assign(nll_nats=63 * (3.0 + 1e-4 * (sequences.step - best_step).abs()))
        assert answer in answers_of(better, scores)[3]


def test_the_even_grid_of_steps():
    for steps, spacing in (
        ([0, 1, 2, 4, 8, 100, 200, 300, 400, 500, 600], 100),
        ([500, 1000, 1500, 1523], 500),
        ([3, 10, 17, 29], 1),
        ([10, 20, 31, 41, 52], 1),
        ([5], 1),
    ):
        assert even_spacing(np.array(steps)) == spacing


def test_fewer_than_six_even_checkpoints_are_undecided():
    for steps, even_count in ((range(100, 600, 100), 5), ((100, 200, 300, 350, 390), 3)):
        judgement = judge(*invented(lambda _: 5.0, steps=steps), 5)
        assert judgement.verdict is Verdict.UNDECIDED
        assert judgement.left_plateau is None
        assert f"has {even_count} of 5" in judgement.explanation


def test_names_of_steps(tmp_path):
    save_model(build_model(TINY, 300, seed=0), tmp_path / "run/checkpoints/step7")
    for target in ("run", "run/checkpoints/step7"):
        assert open_source(str(tmp_path / target)).steps == [7]
