"""Checkpoints are found on disk or by branches of a hub, and compared by small sketches."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from flatminima.config import plan
from flatminima.config.loading import check_config, resolve_suites
from flatminima.config.suites import Suite, find_suite
from flatminima.errors import ConfigError
from flatminima.integrity import WHOLE_MODEL, distances
from flatminima.model import tensor_digests
from flatminima.revisions import (
    BUCKETS,
    DEFAULT_PATTERN,
    TENSOR_BUCKETS,
    branch_of,
    changed_checkpoints,
    check_pattern,
    file_states,
    find_checkpoints,
    fingerprint_checkpoint,
    read_table,
    sketch,
    step_of,
    table_of_branches,
)
from tests.test_config import CONFIG
from tests.test_plan import MINI, PYTHIA

# Branches of a hub

OLMO = r"stage1-step(?P<step>\d+)-tokens(?P<billions>\d+)B"
BRANCHES = {
    "main": "a",
    "stage1-step10000-tokens21B": "b",
    "stage1-step300-tokens1B": "c",
    "step150-tokens1B": "d",
    "stage2-ingredient1-step1000-tokens3B": "e",
}


def test_steps_and_branches_are_converted_in_both_directions():
    for step in (0, 7, 143_000):
        assert branch_of(DEFAULT_PATTERN, step) == f"step{step}"
        assert step_of(DEFAULT_PATTERN, f"step{step}") == step
    for branch in ("main", "step", "step1000-v0", "xstep1000"):
        assert step_of(DEFAULT_PATTERN, branch) is None
    assert step_of(OLMO, "stage1-step1000-tokens3B") == 1000
    assert branch_of(OLMO, 1000) is None, "the number of tokens is not known"


def test_a_table_of_branches_is_read_as_written_and_other_files_are_refused(tmp_path):
    path = tmp_path / "olmo.csv"
    assert read_table(path) is None
    table = table_of_branches(OLMO, BRANCHES)
    assert table.values.tolist() == [
        [300, "stage1-step300-tokens1B", "c"],
        [10000, "stage1-step10000-tokens21B", "b"],
    ]
    table.to_csv(path, index=False)
    assert read_table(path) == {300: "stage1-step300-tokens1B", 10000: "stage1-step10000-tokens21B"}
    with pytest.raises(ValueError, match="none of 5 branches fits .*main, stage1"):
        table_of_branches(DEFAULT_PATTERN, BRANCHES)
    with pytest.raises(ValueError, match="branches step07 and step7 are both step 7"):
        table_of_branches(DEFAULT_PATTERN, {"step7": "a", "step07": "b"})
    for text in ("a,b\n1,2\n", "step,branch,commit\n2,a,b\n1,c,d\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="olmo.csv: the columns must be step, branch, commit"):
            read_table(path)


# Folders of a local run


def fake_checkpoint(folder: Path, *, weights: str | None = "model.safetensors") -> Path:
    """A folder with a configuration and weights of one number."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (folder / "optimizer.pt").write_bytes(b"never read")
    if weights:
        write(folder / weights, {"w": np.ones(3, np.float32)})
    return folder


def write(path, tensors):
    save_file({name: torch.from_numpy(array) for name, array in tensors.items()}, path)
    return path


LOCAL = {
    "label": "own",
    "source": "local",
    "pattern": "runs/mine/checkpoint-{step}",
    "text": {"source": "files", "validation": [{"path": "text.txt"}]},
    "batches": {"validation": {"sequences": 2, "length": 8}},
    "probe": {"steps_per_job": 2},
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A working directory with the checkpoints of steps 500, 1000 and 1500."""
    monkeypatch.chdir(tmp_path)
    for step in (1000, 500, 1500):
        fake_checkpoint(tmp_path / f"runs/mine/checkpoint-{step}")
    return tmp_path / "runs/mine"


def local_suite(**changes) -> Suite:
    config = {
        "suite": "own",
        "suites": resolve_suites({"own": LOCAL | changes}, {}),
        "quantizers": CONFIG["quantizers"],
    }
    return find_suite(check_config(config), "own")


MINE = "runs/mine/checkpoint-{step}"


def test_complete_checkpoints_are_in_order_and_others_are_skipped_with_a_reason(runs):
    """Pickles are never opened. Folders with other names are ignored."""
    fake_checkpoint(runs / "checkpoint-1")
    (runs / "checkpoint-1/config.json").unlink()
    fake_checkpoint(runs / "checkpoint-2", weights=None)
    weights = fake_checkpoint(runs / "checkpoint-3") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    fake_checkpoint(runs / "checkpoint-4", weights="pytorch_model.bin")
    shards(fake_checkpoint(runs / "checkpoint-5"), missing=["model-00002-of-00002.safetensors"])
    for name in ("checkpoint-", "checkpoint-last", "checkpoint-5-old", "xcheckpoint-5"):
        (runs / name).mkdir()
    (runs / "checkpoint-7").write_text("a file")
    run = find_checkpoints(MINE)
    assert list(run.checkpoints) == [500, 1000, 1500]
    assert run.checkpoints[500].folder == "runs/mine/checkpoint-500"
    assert run.checkpoints[500].files == ("config.json", "model.safetensors")
    reasons = (
        "no config.json",
        "no weights",
        "model.safetensors is incomplete",
        "weights only in pytorch_model.bin, a pickle",
        "no model-00002-of-00002.safetensors, which is listed in",
    )
    for step, (line, reason) in enumerate(zip(run.skipped, reasons, strict=True), start=1):
        assert line.startswith(f"runs/mine/checkpoint-{step}: {reason}")


def shards(folder, missing=()):
    """Replace the file of weights by two shards and their index."""
    source = folder / "model.safetensors"
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in set(names) - set(missing):
        shutil.copyfile(source, folder / name)
    source.unlink()
    index = {"weight_map": {"w": names[0], "v": names[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return names


def test_shards_are_one_checkpoint(runs):
    names = shards(runs / "checkpoint-500")
    checkpoint = find_checkpoints(MINE).checkpoints[500]
    assert checkpoint.weights == "model.safetensors.index.json"
    assert checkpoint.files == ("config.json", checkpoint.weights, *names)
    assert plan.weights(local_suite(), "step500") == [
        f"runs/mine/checkpoint-500/{checkpoint.weights}"
    ]
    files = plan.checkpoint_files(local_suite(), "step500-step1000", "probes/step500-step1000.csv")
    assert len(files) == 4 + 2 and {f"runs/mine/checkpoint-500/{name}" for name in names} < set(
        files
    )
    assert list(plan.checkpoint_states(local_suite(), "step500-step1000")) == files


def test_patterns_may_be_relative_or_absolute_and_name_a_subfolder(runs, tmp_path):
    for before in ("./", f"{tmp_path}/"):
        assert list(find_checkpoints(before + MINE).checkpoints) == [500, 1000, 1500]
    fake_checkpoint(tmp_path / "all/step_7[a]/hf")
    fake_checkpoint(tmp_path / "all/step_8/hf")
    assert list(find_checkpoints("all/step_{step}[a]/hf").checkpoints) == [7]
    assert list(find_checkpoints("all/step_{step}/hf").checkpoints) == [8]
    for pattern in ("runs/mine", "a/{step}/{step}", "a/*/{step}"):
        with pytest.raises(ValueError, match="{step} once"):
            check_pattern(pattern)
    fake_checkpoint(runs / "checkpoint-0500")
    with pytest.raises(ConfigError, match="suite own: .*checkpoint-0500 .*are both step 500"):
        local_suite().steps  # noqa: B018


# Plans


def test_discovered_checkpoints_are_planned_in_their_folders(runs):
    suite = local_suite()
    assert suite.steps == [500, 1000, 1500] and suite.last == 1500 and suite.spacing == 1
    assert suite.folders("step500-step1000") == {
        500: "runs/mine/checkpoint-500",
        1000: "runs/mine/checkpoint-1000",
    }
    assert suite.ranges == ["step500-step1000", "step1500"]
    assert plan.schedule(suite) is None and plan.tokens_per_step(suite) is None
    assert plan.tokens_per_step(local_suite(tokens_per_step=128)) == 128
    with pytest.raises(ConfigError, match="step 7 is not a revision of this suite"):
        plan.weights(suite, "step7")


def test_a_replaced_file_has_another_state_even_with_the_same_time_stamp(runs):
    folder = runs / "checkpoint-1000"
    name = shards(folder)[1]
    before = plan.checkpoint_states(local_suite(), [1000])
    assert plan.checkpoint_states(local_suite(), [1000]) == before
    file = folder / name
    status = file.stat()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # like cp -p and rsync -a
    after = plan.checkpoint_states(local_suite(), [1000])
    changed = [path for path in before if before[path] != after[path]]
    assert changed == [f"runs/mine/checkpoint-1000/{name}"]
    assert plan.checkpoint_states(local_suite(), [500]).keys().isdisjoint(before)


def test_files_that_rules_make_have_no_state(runs):
    for suite in (MINI, PYTHIA):
        assert plan.checkpoint_states(suite, [suite.last]) == {}


def test_a_changed_checkpoint_is_named_and_nothing_is_written(runs):
    table = Path("r/own/revisions/step500-step1000.csv")
    table.parent.mkdir(parents=True)
    table.touch()
    checkpoints = find_checkpoints(MINE).checkpoints
    root = Path("r/own")
    assert changed_checkpoints(checkpoints, root) == []
    table_state = file_states([table])
    config = runs / "checkpoint-1000/config.json"
    config.write_text(json.dumps({"model_type": "gpt_neox"}))
    os.utime(config, (9, 9))
    (runs / "checkpoint-1500/config.json").write_text("{}")  # no table describes it
    assert changed_checkpoints(checkpoints, root) == [checkpoints[1000].folder]
    assert file_states([table]) == table_state


def test_listed_steps_must_have_a_checkpoint(runs):
    assert local_suite(grid={"steps": [1500, 500]}).steps == [500, 1500]
    assert local_suite(grid={"steps": [500], "last": 9000}).last == 9000
    (runs / "checkpoint-1000/config.json").unlink()
    with pytest.raises(ConfigError) as error:
        local_suite(grid={"steps": [500, 1000]}).steps  # noqa: B018
    assert "suite own: no checkpoint of step 1000" in str(error.value)
    assert "checkpoint-1000: no config.json" in str(error.value)
    with pytest.raises(ConfigError, match="suite own: no checkpoint .*runs/none"):
        local_suite(pattern="runs/none-{step}").steps  # noqa: B018


@pytest.mark.parametrize("name", ["n_positions", "max_position_embeddings"])
def test_sequences_are_no_longer_than_the_model_accepts(runs, name):
    (runs / "checkpoint-500/config.json").write_text(json.dumps({name: 64}))
    grid = {"steps": [500]}
    longest = {"sequences": 8, "length": 64}
    cut = plan.batches(local_suite(grid=grid, batches={"validation": longest}))["validation"]
    assert cut == longest | {"end_of_text": True, "document_start": False}
    with pytest.raises(ConfigError) as error:
        plan.batches(local_suite(grid=grid, batches={"validation": longest | {"length": 65}}))
    message = str(error.value)
    assert message.startswith("config key suites.own.batches.validation.length: 65 ")
    assert "runs/mine/checkpoint-500/config.json" in message
    assert message.endswith("valid: 2 to 64")


def test_the_tokenizer_is_beside_the_checkpoints_or_at_its_path(runs, tmp_path):
    with pytest.raises(ConfigError, match=r"suites.own.tokenizer: no tokenizer.json in runs/mine"):
        plan.tokenizer_file(local_suite())
    (runs / "tokenizer.json").write_text("{}")
    assert plan.tokenizer_file(local_suite()) == "runs/mine/tokenizer.json"
    (runs / "checkpoint-1500/tokenizer.json").write_text("{}")
    assert plan.tokenizer_file(local_suite()) == "runs/mine/checkpoint-1500/tokenizer.json"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/tokenizer.json").write_text("{}")
    for path in ("other", "other/tokenizer.json"):
        assert plan.tokenizer_file(local_suite(tokenizer={"path": path})) == "other/tokenizer.json"


# Sketches

SHAPES = {"a.weight": (96, 64), "b.weight": (130, 7), "b.bias": (130,), "c.weight": (64, 512)}


def random_tensors(seed, scale=1.0):
    random = np.random.default_rng(seed)
    return {
        name: (scale * random.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def exact_distance(tensors, others):
    squared = 0.0
    for name, tensor in tensors.items():
        squared += np.square(tensor.astype(float) - others[name].astype(float)).sum()
    return np.sqrt(squared)


def test_estimated_distances_are_correct_to_a_few_percent(tmp_path):
    base = random_tensors(0)
    models = {}
    for step in range(40):  # distances of five orders of magnitude
        nudge = random_tensors(step, scale=10.0 ** (step % 5 - 4) if step else 0.0)
        models[step] = {name: base[name] + nudge[name] for name in base}
    fingerprints = pd.concat(
        fingerprint_checkpoint(step, write(tmp_path / "m.safetensors", tensors))
        for step, tensors in models.items()
    )
    estimates = distances(fingerprints, list(models))
    np.testing.assert_array_equal(np.diagonal(estimates), 0.0)
    ratios = np.array(
        [estimates[0, step] / exact_distance(models[0], models[step]) for step in range(1, 40)]
    )
    # The standard error is 1 / sqrt(2 BUCKETS), 1.1 %.
    assert np.abs(ratios - 1.0).max() < 4.5 / np.sqrt(2 * BUCKETS)
    assert 0.5 / np.sqrt(2 * BUCKETS) < ratios.std() < 2.0 / np.sqrt(2 * BUCKETS)
    assert abs(ratios.mean() - 1.0) < 0.01


def test_a_change_of_one_row_or_one_column_is_measured_as_well():
    """Neither the weights of a row nor those of a column are all in one bucket."""
    random = np.random.default_rng(1)
    for place in range(60):
        change = np.zeros((512, 512), dtype=np.float32)
        rows_or_columns = change if place % 2 else change.T
        rows_or_columns[random.integers(512)] = random.standard_normal(512)
        length = np.linalg.norm(change.astype(float))
        assert abs(np.linalg.norm(sketch("layer.weight", change)) / length - 1.0) < 0.1


def test_the_signs_of_a_sketch_depend_on_the_name_and_not_on_the_shape():
    weights = np.random.default_rng(2).integers(-8, 8, (50, 50)).astype(np.float32)
    assert not np.array_equal(sketch("x", weights), sketch("y", weights))
    np.testing.assert_array_equal(sketch("x", weights), sketch("x", weights.ravel()))


def test_rows_of_a_checkpoint(tmp_path):
    tensors = random_tensors(3)
    # Old checkpoints also contain masks, which are not weights.
    masks = {"gpt_neox.layers.0.attention.masked_bias": np.array(-1e9, dtype=np.float32)}
    path = write(tmp_path / "m.safetensors", tensors | masks)
    table = fingerprint_checkpoint(7, path).set_index("tensor")
    assert list(table.index) == [*sorted(SHAPES), WHOLE_MODEL] and set(table["step"]) == {7}
    assert table["sha256"].drop(WHOLE_MODEL).to_dict() == tensor_digests(path)
    assert table.loc["b.bias", "sha256"] == hashlib.sha256(tensors["b.bias"].tobytes()).hexdigest()
    assert table.loc["c.weight", "shape"] == "64x512"
    assert table.loc[WHOLE_MODEL, "n_weights"] == sum(tensor.size for tensor in tensors.values())
    squares = sum(np.square(tensor.astype(float)).sum() for tensor in tensors.values())
    assert table.loc[WHOLE_MODEL, "sum_of_squares"] == pytest.approx(squares)
    assert len(table.loc[WHOLE_MODEL, "sketch"]) == BUCKETS
    for name, tensor in tensors.items():
        tensor_sketch = table.loc[name, "sketch"]
        ratio = np.linalg.norm(tensor_sketch) / np.linalg.norm(tensor.astype(float))
        assert len(tensor_sketch) == TENSOR_BUCKETS
        assert abs(ratio - 1.0) < 0.35
