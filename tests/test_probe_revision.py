"""Revisions fetched, measured and deleted: the numbers of checkpoints on disk; holes; kills."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flatminima.config.keys import Integrity
from flatminima.files import read_rows
from flatminima.hub import download_checkpoint
from flatminima.text.tokens import write_tokens
from tests.conftest import PROBE, TINY_VOCABULARY, in_child
from tests.hub.repos import model_branches
from tests.hub.server import TinyHub, point_at
from tests.test_scripts import run_script

REPO = "tiny/neox"
STEPS = (0, 1, 2, 4, 8)
LOST = 4
FILES = {
    "sequences": "parquet",
    "provenance": "json",
    "kurtosis": "csv",
    "revisions": "csv",
    "fingerprints": "parquet",
}


@pytest.fixture(scope="module")
def validation(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "validation.safetensors"
    tokens = np.random.default_rng(0).integers(0, TINY_VOCABULARY, (6, 16)).astype(np.int32)
    write_tokens(path, tokens)
    return str(path)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Branches in all forms; those of 0 and 1 are the same, that of ``LOST`` is not there."""
    branches = model_branches(STEPS)
    del branches[f"step{LOST}"]
    with TinyHub({REPO: branches}) as server, pytest.MonkeyPatch.context() as patch:
        point_at(patch, server, tmp_path_factory.mktemp("home"))
        yield server


def outputs(folder: Path) -> dict[str, str]:
    return {name: f"{folder}/{name}.{suffix}" for name, suffix in FILES.items()}


def probe(validation: str, folder: Path, steps=STEPS) -> str:
    log = run_script(
        "probe_revision",
        folder,
        input={"validation": validation},
        output=outputs(folder),
        params={
            "repo": REPO,
            "branches": {step: f"step{step}" for step in steps},
            "probe": PROBE,
            "layers": "blocks",
            "tokens_per_step": 128,
            "folder": f"{folder}/checkpoint",
            "code": "abc",
        },
    )
    return log.read_text()


@pytest.fixture(scope="module")
def probed(validation, hub, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("probed")
    said = probe(validation, folder)
    assert f"step {LOST} is missing: the hub has no such revision" in said
    assert "4 of 5 revisions probed" in said and not (folder / "checkpoint").exists()
    return folder


def test_the_numbers_are_those_of_the_rules_for_checkpoints_on_disk(
    validation, hub, probed, tmp_path
):
    steps = [step for step in STEPS if step != LOST]
    origins = {s: download_checkpoint(REPO, f"step{s}", tmp_path / f"step{s}") for s in steps}
    out = outputs(tmp_path)
    folders = {step: f"{tmp_path}/step{step}" for step in steps}
    weights = [f"{folder}/model.safetensors" for folder in folders.values()]
    settings = {"probe": PROBE, "layers": "blocks", "tokens_per_step": 128, "code": "abc"}
    for script, files, written in (
        (
            "probe_checkpoints",
            {"validation": validation},
            {name: out[name] for name in ("sequences", "provenance")},
        ),
        ("measure_kurtosis", {"weights": weights}, {"table": out["kurtosis"]}),
        (
            "describe_checkpoints",
            {"weights": weights},
            {"table": out["revisions"], "fingerprints": out["fingerprints"]},
        ),
    ):
        params = {"folders": folders, "steps": steps} | settings
        run_script(script, tmp_path, input=files, output=written, params=params)
    for name in ("sequences", "provenance", "kurtosis", "fingerprints"):
        assert Path(out[name]).read_bytes() == Path(outputs(probed)[name]).read_bytes(), name
    fetched, on_disk = (
        pd.read_csv(outputs(folder)["revisions"], index_col="step") for folder in (probed, tmp_path)
    )
    same = [column for column in on_disk if column not in ("commit", "files")]
    # Counts beside a gap are floats to pandas.
    pd.testing.assert_frame_equal(fetched.loc[steps, same], on_disk[same], check_dtype=False)
    for step, origin in origins.items():
        row = fetched.loc[step]
        assert row["commit"] == origin["commit"] == hub.commit(REPO, f"step{step}")
        digests = dict(file.rsplit(":", 1) for file in row["files"].split())
        assert digests == origin["files"]
    # A missing revision has a row that says so, and no number.
    assert list(fetched.index) == list(STEPS)
    assert fetched.loc[LOST].dropna().to_dict() == {
        "status": "missing",
        "reason": "the hub has no such revision",
        "revision": f"step{LOST}",
        "tokens_seen": 512,
    }


def test_a_job_of_nothing_but_holes_is_written_and_gathered(validation, hub, probed, tmp_path):
    probe(validation, tmp_path, steps=[LOST])
    assert len(pd.read_csv(outputs(tmp_path)["revisions"])) == 1
    run_script(
        "summarise_probes",
        tmp_path,
        input={"sequences": outputs(tmp_path)["sequences"]},
        output={"table": "table.csv"},
        params={"resamples": 5},
    )
    assert pd.read_csv(tmp_path / "table.csv").empty
    for name in ("sequences", "kurtosis", "fingerprints"):
        both = [outputs(tmp_path)[name], outputs(probed)[name]]
        pd.testing.assert_frame_equal(read_rows(both), read_rows(both[1:]))
        with pytest.raises(ValueError, match="no revision of the suite"):
            read_rows(both[:1])


def test_a_kill_leaves_one_checkpoint_which_the_next_run_deletes(
    validation, hub, probed, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        patch.setattr("flatminima.revisions.fingerprint_checkpoint", kill)
        assert in_child(lambda: probe(validation, tmp_path))
    assert (tmp_path / "checkpoint/model.safetensors").exists()
    probe(validation, tmp_path)
    assert not (tmp_path / "checkpoint").exists()
    for name in FILES:
        one, other = (Path(outputs(folder)[name]).read_bytes() for folder in (tmp_path, probed))
        assert one == other, name


def gather(folder: Path, tables: dict, severity: dict, measured_by="probe_revision") -> str:
    log = folder / "gather_suite.log"
    with suppress(SystemExit):
        run_script(
            "gather_suite",
            folder,
            input=tables,
            output={"table": str(folder / "suite.csv")},
            params={
                "severity": dict(Integrity(**severity)),
                "measured_by": measured_by,
                "refused": str(folder / "refused/suite.csv"),
                "code": "abc",
            },
        )
    return log.read_text()


def test_what_stops_the_suite_names_the_command_that_fetches_it_again(validation, hub, tmp_path):
    """A hub that ignores a branch; its files are those of the last step."""
    folders = [tmp_path / f"step{step}" for step in STEPS]
    hub.ignored.add((REPO, "step2"))
    for step, folder in zip(STEPS, folders, strict=True):
        folder.mkdir()
        probe(validation, folder, [step])
    hub.clear()
    outputs_by_folder = [outputs(folder) for folder in folders]
    tables = {
        "tables": [out["revisions"] for out in outputs_by_folder],
        "fingerprints": [out["fingerprints"] for out in outputs_by_folder],
    }
    last = gather(tmp_path, tables, {}).splitlines()[-1]
    assert last.startswith("Error: suite tiny: revisions do not match their names: ")
    assert "final_weights_early: step 2 (" in last and "suites.tiny.integrity" in last
    wanted = [tables["tables"][STEPS.index(step)] for step in (2, LOST)]
    assert f"--forcerun {' '.join(wanted)}" in last
    refused = pd.read_csv(tmp_path / "refused/suite.csv").set_index("step")
    assert refused["findings"].dropna().to_dict() == {2: "final_weights_early", LOST: "missing"}
    assert not (tmp_path / "suite.csv").exists()
    # On disk there is nothing to fetch again; and what is only warned of is written.
    assert "--forcerun" not in gather(tmp_path, tables, {}, measured_by=None)
    message_lines = gather(tmp_path, tables, {"final_weights_early": "warn"}).splitlines()
    assert any(line.startswith("warning: final_weights_early: step 2") for line in message_lines)
    assert (
        message_lines[-1].startswith("1 missing;")
        and wanted[1] in message_lines[-1]
        and wanted[0] not in message_lines[-1]
    )
    assert not (tmp_path / "refused/suite.csv").exists()
