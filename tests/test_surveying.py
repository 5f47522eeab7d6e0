"""Revisions fetched, measured and deleted: the numbers of kept checkpoints, disk, kills, holes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock

from flatminima.model import build_model, save_model
from flatminima.revisions.finished_parts import FinishedParts
from flatminima.revisions.origins import stand_in
from flatminima.revisions.surveying import LOCK, Survey
from flatminima.scoring import Prober
from flatminima.text.tokens import write_tokens
from tests.test_scripts import PROBE, SHAPE, run_script

STEPS = [0, 1, 2, 4, 8]
LOST = 4
NAMES = ("table", "sequences", "kurtosis", "revisions", "fingerprints")


@pytest.fixture(scope="module")
def validation(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "validation.safetensors"
    tokens = np.random.default_rng(0).integers(0, 64, (6, 16)).astype(np.int32)
    write_tokens(path, tokens)
    return str(path)


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Path:
    """Checkpoints by step; those of 0 and 1 are the same, that of ``LOST`` is not there."""
    folder = tmp_path_factory.mktemp("hub")
    for step in STEPS:
        if step != LOST:
            save_model(build_model(SHAPE, 64, seed=max(step, 1)), folder / f"step{step}")
    return folder


class Fetch:
    """Copies from ``hub``; remembers what it was asked for and the most that ever existed."""

    def __init__(self, hub: Path) -> None:
        self.hub, self.asked, self.most = hub, [], 0

    def __call__(self, step: int, folder: Path) -> dict:
        self.asked.append(step)
        origin = {"repo": "a/b", "revision": f"step{step}"}
        if step == LOST:
            return {**origin, "status": "missing", "reason": "the hub has no such revision"}
        assert not folder.exists()
        shutil.copytree(self.hub / f"step{step}", folder)
        self.most = max(self.most, len(list(folder.parent.iterdir())))
        files = {"model.safetensors": "ab", "config.json": "cd"}
        return {**origin, "status": "present", "commit": f"{step:039x}a", "files": files}


def survey(validation: str, folder: Path) -> Survey:
    prober = Prober(validation, PROBE, 1)
    return Survey(prober, "blocks", 128, FinishedParts(folder / "unfinished", "f"))


def outputs(folder: Path) -> dict[str, str]:
    suffixes = {"sequences": "parquet", "fingerprints": "parquet"}
    return {name: f"{folder}/{name}.{suffixes.get(name, 'csv')}" for name in NAMES}


def run(validation: str, folder: Path, fetch, most: int = 2, steps=STEPS) -> None:
    one = survey(validation, folder)
    missing = one.run(steps, fetch, most)
    one.write(steps, missing, outputs(folder), PROBE["resamples"])


@pytest.fixture(scope="module")
def streamed(validation, hub, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("streamed")
    run(validation, folder, Fetch(hub))
    return folder


@pytest.fixture(scope="module")
def kept(validation, hub, tmp_path_factory) -> Path:
    """The same by the rules for kept checkpoints, with a stand-in for what is not there."""
    folder = tmp_path_factory.mktemp("kept")
    for step in STEPS:
        origin = Fetch(hub)(step, folder / f"step{step}")
        if step == LOST:
            stand_in(folder / f"step{step}", origin["reason"])
        (folder / f"step{step}.json").write_text(json.dumps(origin))
    out = outputs(folder)
    weights = [f"{folder}/step{step}/model.safetensors" for step in STEPS]
    run_script(
        "probe_checkpoints", folder, input={"validation": validation},
        output={"table": out["table"], "sequences": out["sequences"], "provenance": f"{folder}/p"},
        params={"folders": {s: f"{folder}/step{s}" for s in STEPS}, "probe": PROBE, "code": "abc"},
    )  # fmt: skip
    run_script(
        "measure_kurtosis", folder, input={"weights": weights}, output={"table": out["kurtosis"]},
        params={"steps": STEPS, "layers": "blocks", "code": "abc"},
    )  # fmt: skip
    run_script(
        "describe_checkpoints", folder,
        input={"weights": weights, "commits": [f"{folder}/step{step}.json" for step in STEPS]},
        output={"table": out["revisions"], "fingerprints": out["fingerprints"]},
        params={"steps": STEPS, "tokens_per_step": 128, "code": "abc"},
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_those_of_the_rules_for_kept_checkpoints(streamed, kept, name):
    one, other = (Path(outputs(folder)[name]) for folder in (streamed, kept))
    assert len(one.read_bytes()) > 300
    assert one.read_bytes() == other.read_bytes()


def test_a_missing_revision_has_a_row_that_says_so_and_no_number(streamed):
    revisions = pd.read_csv(outputs(streamed)["revisions"]).set_index("step")
    assert list(revisions.index) == STEPS
    lost = revisions.loc[LOST].dropna()
    assert set(lost.index) == {"status", "reason", "revision", "tokens_seen"}
    assert lost["status"] == "missing" and lost["reason"] == "the hub has no such revision"
    assert list(revisions.loc[8, ["commit", "n_tensors"]]) == [f"{8:039x}a", 28]
    for name in ("table", "kurtosis"):
        assert set(pd.read_csv(outputs(streamed)[name])["step"]) == {0, 1, 2, 8}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_checkpoints_exist_than_allowed_and_none_is_left(validation, hub, tmp_path, most):
    fetch = Fetch(hub)
    run(validation, tmp_path, fetch, most)
    assert fetch.asked == STEPS and 1 <= fetch.most <= most
    assert list((tmp_path / "unfinished/checkpoints").iterdir()) == []


def test_a_job_that_fails_goes_on_where_it_was_and_ends_with_the_same_files(
    validation, hub, streamed, tmp_path
):
    fetch = Fetch(hub)

    def cut_off(step, folder):
        if step == 8:
            raise OSError("connection lost")
        return fetch(step, folder)

    with pytest.raises(OSError, match="connection lost"):
        run(validation, tmp_path, cut_off)
    # What a kill leaves besides: a checkpoint of a finished revision and half a file.
    (tmp_path / "unfinished/checkpoints/step1").mkdir(parents=True)
    (tmp_path / "unfinished/.step8.json.99.tmp").write_text("{")
    again = Fetch(hub)
    run(validation, tmp_path, again)
    assert again.asked == [LOST, 8], "the missing one is asked for again, the finished are not"
    for name in NAMES:
        one, other = outputs(tmp_path)[name], outputs(streamed)[name]
        assert Path(one).read_bytes() == Path(other).read_bytes(), name


def test_what_a_killed_job_of_another_range_left_is_deleted_unless_one_works_on_it(
    validation, hub, tmp_path
):
    for name in ("killed", "working"):
        (tmp_path / name / "checkpoints/step40").mkdir(parents=True)
        (tmp_path / name / "step20.json").write_text("{}")
    with FileLock(tmp_path / "working" / LOCK):
        run(validation, tmp_path, Fetch(hub), steps=[0])
    assert not (tmp_path / "killed/checkpoints").exists()
    assert (tmp_path / "working/checkpoints/step40").is_dir()
    assert (tmp_path / "killed/step20.json").exists(), "what was finished stays"


def test_what_other_settings_left_is_thrown_away(tmp_path):
    parts = FinishedParts(tmp_path / "p", "one")
    parts.keep("step1", {"step": 1}, {"t": pd.DataFrame({"a": [0.1]})})
    assert FinishedParts(tmp_path / "p", "one").table("step1", "t")["a"].item() == 0.1
    assert not FinishedParts(tmp_path / "p", "two").has("step1")
    assert not FinishedParts(tmp_path / "p", "one").has("step1")


def test_a_range_of_nothing_but_holes_is_written_and_gathered(validation, hub, streamed, tmp_path):
    from flatminima.files import read_rows

    run(validation, tmp_path, Fetch(hub), steps=[LOST])
    assert len(pd.read_csv(outputs(tmp_path)["revisions"])) == 1
    for name in ("table", "sequences", "kurtosis", "fingerprints"):
        both = [outputs(tmp_path)[name], outputs(streamed)[name]]
        pd.testing.assert_frame_equal(read_rows(both), read_rows(both[1:]))
        with pytest.raises(ValueError, match="no revision of the suite could be had"):
            read_rows(both[:1])


def test_a_stand_in_loads_as_no_model(tmp_path):
    from flatminima.model import load_model

    stand_in(tmp_path / "step4", "the hub has no such revision")
    with pytest.raises(ValueError, match="no such checkpoint .the hub has no such revision"):
        load_model(tmp_path / "step4")
