"""Checkpoints found on disk, and why others are not taken."""

import json
import shutil

import pytest

from flatminima.errors import ConfigError
from flatminima.planning import SuitePlan, final_outputs
from flatminima.revisions.discovery import check_pattern, find_checkpoints
from tests.local_run import fake_checkpoint

LOCAL = {
    "label": "own", "source": "local", "pattern": "runs/mine/checkpoint-{step}",
    "grid": "discover", "tokenizer": {}, "is_paper_model": False,
    "batches": {"validation": {"sequences": 2, "length": 8}},
    "probe": {"steps_per_job": 2},
}  # fmt: skip


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A working directory with the checkpoints of steps 500, 1000 and 1500."""
    monkeypatch.chdir(tmp_path)
    for step in (1000, 500, 1500):
        fake_checkpoint(tmp_path / f"runs/mine/checkpoint-{step}")
    return tmp_path / "runs/mine"


def plan(**changes) -> SuitePlan:
    return SuitePlan("own", LOCAL | changes, {})


def test_steps_are_in_order_of_number_and_files_are_the_needed_ones(runs):
    found = find_checkpoints("runs/mine/checkpoint-{step}")
    assert list(found.checkpoints) == [500, 1000, 1500] and found.skipped == []
    assert found.checkpoints[500].folder == "runs/mine/checkpoint-500"
    assert found.checkpoints[500].files == ("config.json", "model.safetensors")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-4])


BROKEN = {
    "no config.json": lambda folder: (folder / "config.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "model.safetensors is not whole": lambda folder: truncate(folder / "model.safetensors"),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_folder_that_is_no_whole_checkpoint_is_skipped_with_the_reason(reason, runs):
    BROKEN[reason](runs / "checkpoint-1000")
    found = find_checkpoints("runs/mine/checkpoint-{step}")
    assert list(found.checkpoints) == [500, 1500]
    [line] = found.skipped
    assert line.startswith(f"runs/mine/checkpoint-1000: {reason}")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_pickle_is_never_opened(name, runs):
    fake_checkpoint(runs / "checkpoint-2000", weights=name)
    found = find_checkpoints("runs/mine/checkpoint-{step}")
    assert 2000 not in found.checkpoints
    assert f"weights only in {name}, a pickle, which could run code" in found.skipped[0]


def shards(folder, missing=()):
    """Two shards with their index in place of one file."""
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
    found = find_checkpoints("runs/mine/checkpoint-{step}").checkpoints[500]
    assert found.weights == "model.safetensors.index.json"
    assert found.files == ("config.json", found.weights, *names)
    assert plan().weights("step500") == [f"runs/mine/checkpoint-500/{found.weights}"]
    assert plan().shards("step500-step1000") == [f"runs/mine/checkpoint-500/{n}" for n in names]
    assert len(plan().checkpoint_files("step500-step1000")) == 4 + 2


def test_a_missing_shard_is_named(runs):
    shards(runs / "checkpoint-500", missing=["model-00002-of-00002.safetensors"])
    [line] = find_checkpoints("runs/mine/checkpoint-{step}").skipped
    assert "no model-00002-of-00002.safetensors, which model.safetensors.index.json names" in line


def test_other_names_are_not_looked_at(runs):
    for name in ("checkpoint-", "checkpoint-last", "checkpoint-5-old", "xcheckpoint-5"):
        (runs / name).mkdir()
    (runs / "checkpoint-7").write_text("a file")
    found = find_checkpoints("runs/mine/checkpoint-{step}")
    assert len(found.checkpoints) == 3 and found.skipped == []


@pytest.mark.parametrize(
    "pattern", ["./runs/mine/checkpoint-{step}", "{here}/runs/mine/checkpoint-{step}"]
)
def test_patterns_from_here_and_from_the_root(pattern, runs, tmp_path):
    found = find_checkpoints(pattern.replace("{here}", tmp_path.as_posix()))
    assert list(found.checkpoints) == [500, 1000, 1500]


def test_the_step_may_be_a_folder_above(runs, tmp_path):
    fake_checkpoint(tmp_path / "all/step_7[a]/hf")
    fake_checkpoint(tmp_path / "all/step_8/hf")
    assert list(find_checkpoints("all/step_{step}[a]/hf").checkpoints) == [7]
    assert list(find_checkpoints("all/step_{step}/hf").checkpoints) == [8]


def test_two_folders_of_one_step_are_an_error(runs):
    fake_checkpoint(runs / "checkpoint-0500")
    with pytest.raises(ConfigError, match="suite own: .*checkpoint-0500 .*are both step 500"):
        plan().steps  # noqa: B018


@pytest.mark.parametrize("pattern", ["runs/mine", "a/{step}/{step}", "a/*/{step}"])
def test_a_pattern_has_one_place_for_the_step(pattern):
    with pytest.raises(ValueError, match="must have {step} once"):
        check_pattern(pattern)


# Plans


def test_a_found_grid_is_planned_where_it_lies(runs):
    own = plan()
    assert own.steps == [500, 1000, 1500] and own.last == 1500 and own.spacing == 1
    assert own.folders("step500-step1000") == {
        500: "runs/mine/checkpoint-500", 1000: "runs/mine/checkpoint-1000",
    }  # fmt: skip
    assert own.probe_tables == ["results/own/probes/step500-step1000.csv",
                                "results/own/probes/step1500.csv"]  # fmt: skip
    assert own.commits("step500") == [] and own.schedule is None and own.tokens_per_step is None
    assert plan(tokens_per_step=128).tokens_per_step == 128
    with pytest.raises(ConfigError, match="step 7 is not a revision of this suite"):
        own.weights("step7")


def test_a_choice_of_steps_must_be_there(runs):
    assert plan(grid={"steps": [1500, 500]}).steps == [500, 1500]
    assert plan(grid={"steps": [500], "last": 9000}).last == 9000
    (runs / "checkpoint-1000/config.json").unlink()
    with pytest.raises(ConfigError) as error:
        plan(grid={"steps": [500, 1000]}).steps  # noqa: B018
    assert "suite own: no checkpoint of step 1000 fits pattern" in str(error.value)
    assert "checkpoint-1000: no config.json" in str(error.value)


def test_nothing_found_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="suite own: no checkpoint fits pattern runs/mine"):
        plan().steps  # noqa: B018


def test_what_is_asked_of_a_model_fits_it(runs):
    for step in (500, 1500):
        config = {"n_positions": 64, "n_embd": 48} if step == 500 else {
            "max_position_embeddings": 64, "hidden_size": 48}  # fmt: skip
        folder = runs / f"checkpoint-{step}"
        (folder / "config.json").write_text(json.dumps(config))
        grid = {"steps": [step]}
        fits = {"validation": {"sequences": 8, "length": 64}}
        assert plan(grid=grid, batches=fits).batches == fits
        with pytest.raises(ConfigError) as error:
            plan(grid=grid, batches={"validation": {"sequences": 8, "length": 65}}).batches  # noqa: B018
        assert str(error.value) == (
            "config key suites.own.batches.validation.length: 65 is longer than the model takes "
            f"(64, runs/mine/checkpoint-{step}/config.json); valid: 2 to 64"
        )


def test_the_tokenizer_lies_beside_the_checkpoints_or_where_it_is_said(runs, tmp_path):
    with pytest.raises(ConfigError, match=r"suites.own.tokenizer: no tokenizer.json in runs/mine"):
        plan().tokenizer_file  # noqa: B018
    (runs / "tokenizer.json").write_text("{}")
    assert plan().tokenizer_file == "runs/mine/tokenizer.json"
    (runs / "checkpoint-1500/tokenizer.json").write_text("{}")
    assert plan().tokenizer_file == "runs/mine/checkpoint-1500/tokenizer.json"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/tokenizer.json").write_text("{}")
    for path in ("other", "other/tokenizer.json"):
        assert plan(tokenizer={"path": path}).tokenizer_file == "other/tokenizer.json"


def test_without_forks_what_they_make_is_not_asked_for(runs):
    outputs = final_outputs(
        plan(), tables=["table1", "table2"], figures=["fig1_audit", "fig3_forks"],
        notebooks={"audit": ["audit.csv"], "tour": ["tables/table2.md"]},
    )  # fmt: skip
    names = [path.removeprefix("results/own/") for path in outputs]
    assert {"audit.csv", "tables/table1.csv", "figures/fig1_audit.pdf"} <= set(names)
    assert "notebooks/audit.html" in names and "notebooks/tour.html" not in names
    assert not [n for n in names if "fork" in n or "table2" in n or "claims" in n or "warning" in n]
