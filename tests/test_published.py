"""Published measurements: complete, with their origin, and enough to redraw everything."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from flatminima.config.plan import facts
from flatminima.config.suites import read_suite
from flatminima.errors import DamagedFile, UserError
from flatminima.files import read_digests
from flatminima.tools import publish as publishing
from flatminima.tools.publish import (
    further_files,
    machine,
    measured_files,
    publish,
    published_section,
)
from tests.workflow import ROOT, copy_checkout, dry_run, planned, snakemake
from workflow_scripts import restore_measurements

pytestmark = pytest.mark.workflow
MINI = ROOT / "resources/published/mini"
PROVENANCE = json.loads((MINI / "provenance.json").read_text())
PUBLISHED = ["--config", "suite=mini-published"]


@pytest.fixture(scope="module")
def restored(tmp_path_factory) -> Path:
    """The results of mini, as they were when they were published."""
    root = tmp_path_factory.mktemp("restored") / "results/mini"
    restore_measurements.main(str(MINI), [root / name for name in read_digests(MINI)])
    return root


def files_of(root: Path) -> dict[str, int]:
    """Size of each file below a folder."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.stat().st_size for path in files}


def test_every_published_file_is_listed_and_complete(restored):
    files = files_of(restored)
    assert files_of(MINI).keys() - {"SHA256SUMS", "provenance.json", "suite.yaml"} == files.keys()
    assert sum(files.values()) == PROVENANCE["bytes"] and len(files) == PROVENANCE["files"]
    assert sum(files.values()) < 15e6, "a few megabytes: no weights"
    assert not [name for name in files if name.endswith((".safetensors", ".jsonl"))]
    label = facts(read_suite("mini-published", []))["label"]
    assert "not Pythia" in label and "stored measurements" in label
    assert len(PROVENANCE["commit"]) == 40
    text = (MINI / "provenance.json").read_text() + (MINI / "suite.yaml").read_text()
    assert platform.node() not in text and str(Path.home()) not in text


def test_what_is_restored_can_be_published_again(restored, tmp_path):
    """The way back: from results to the same frozen files, digests and provenance."""
    suite = read_suite("mini", [])
    folder = tmp_path / "published/mini"
    measured_by = {"commit": PROVENANCE["commit"], "machine": PROVENANCE["machine"]}
    publish(suite, restored, folder, **measured_by)
    for name in ("SHA256SUMS", "provenance.json", *read_digests(MINI)):
        assert (folder / name).read_bytes() == (MINI / name).read_bytes(), name
    section = yaml.safe_load((folder / "suite.yaml").read_text())["mini-published"]
    assert section["source"] == "published"
    assert section["measurements"] == folder.as_posix()
    with pytest.raises(UserError, match=r"results/mini/suite\.csv"):
        publish(suite, tmp_path / "results/mini", folder, **measured_by)


def test_results_of_other_code_are_not_published(monkeypatch):
    suite = read_suite("mini", [])
    folder = Path("resources/published/mini")
    one_job_remains = (0, {"probe": 2}, [])
    monkeypatch.setattr(publishing, "git", lambda *arguments: "")
    monkeypatch.setattr(publishing, "dry_run", lambda *_, configfiles: one_job_remains)
    with pytest.raises(UserError, match=r"results/mini is out of date"):
        publishing.check_current(suite, [], folder)


def test_results_of_changed_code_are_not_published(monkeypatch):
    changed_file = "workflow_scripts/x.py"
    monkeypatch.setattr(publishing, "git", lambda *arguments: changed_file)
    with pytest.raises(UserError, match=changed_file):
        suite = read_suite("mini", [])
        publishing.check_current(suite, [], Path("resources/published/mini"))


@pytest.mark.parametrize("target", ["publish", "freeze"])
def test_the_command_publish_refuses_a_wrong_suite_in_one_line(target):
    command = [sys.executable, "-m", "flatminima", target, "--suite", "nowhere"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow_scripts")}
    run = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert run.returncode == 2
    assert "nowhere" in run.stderr and run.stderr.count("\n") == 1


def test_keys_of_what_was_not_measured_are_not_in_the_published_suite():
    suite = read_suite("mini", [])
    bare = published_section(suite, set(measured_files(suite)), folder="x", commit="0" * 40)
    assert "mechanism" not in bare
    assert not {"rivals", "rival_seeds", "pilot", "amplitudes"} & set(bare["fork"])
    # The primary test needs cooled.csv, so it is left out as well.
    assert not {"cooldown_steps", "primary"} & set(bare["fork"])
    all_files = set(measured_files(suite)) | set(further_files(suite))
    complete = published_section(suite, all_files, folder="x", commit="0" * 40)
    assert complete["mechanism"] == suite.config.mechanism.dump(exclude={"second_arm"})
    assert complete["fork"] == suite.config.fork.dump()
    assert {"cycles.csv", "mechanism/factors.csv", "rivals.csv"} <= all_files


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("published"))


def test_nothing_is_trained_or_probed_and_a_file_that_is_not_published_is_refused(checkout):
    jobs = planned(*PUBLISHED, "--", "all", "extended", folder=checkout)
    assert jobs["restore_measurements_mini-published"] == 1
    measuring = (
        *("pretrain", "train_", "probe", "measure", "survey", "fetch", "collect", "describe"),
        *("average", "calibrate", "trace", "fix_batches"),
    )
    assert not [rule for rule in jobs if rule.startswith(measuring)]
    assert {"plot_audit", "plot_forks", "judge_claims", "render_notebook_tour"} <= jobs.keys()
    for name in ("probes/step1000.csv", "deployed.csv"):
        run = dry_run(f"results/mini-published/{name}", folder=checkout)
        assert run.returncode != 0 and "Traceback" not in run.stdout
        last_line = run.stdout.splitlines()[-1]
        assert last_line.startswith("Error: ")
        assert "mini-published" in last_line and "results/mini/" in last_line


def test_a_frozen_deployed_table_is_restored_and_allows_nothing_else(tmp_path):
    folder = copy_checkout(tmp_path / "deployed")
    frozen = folder / "resources/published/mini"
    (frozen / "deployed.csv").write_text("suite,step\nmini,5720\n")
    digest = hashlib.sha256((frozen / "deployed.csv").read_bytes()).hexdigest()
    with (frozen / "SHA256SUMS").open("a") as digests:
        digests.write(f"{digest}  deployed.csv\n")
    assert planned("results/mini-published/deployed.csv", folder=folder) == {
        "restore_measurements_mini-published": 1
    }
    for name in ("probes/step1000.csv", "averages/run.csv", "mechanism/layers/step1000.csv"):
        run = dry_run(f"results/mini-published/{name}", folder=folder)
        assert run.returncode != 0 and "Traceback" not in run.stdout
        assert "stored measurements only" in run.stdout.splitlines()[-1], name


def make(*arguments: str) -> subprocess.CompletedProcess:
    command = ["make", "--dry-run", "CORES=2", *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


def test_the_makefile_takes_a_configuration_of_ones_own_and_the_published_measurements():
    """Targets come before --configfile, which would take them for further files."""
    for target, command in {
        "all": "snakemake --cores 2 all --configfile mine.yaml",
        "figures": "snakemake --cores 2 all --configfile mine.yaml",
        "report": "snakemake --report report.html --configfile mine.yaml",
        "plan": "flatminima plan --configfile mine.yaml",
        "freeze": "flatminima freeze --configfile mine.yaml",
        "publish": "flatminima publish --configfile mine.yaml",
    }.items():
        assert command in " ".join(make(target, "CONFIG=mine.yaml").stdout.split())
        commands = make(target, "CONFIG=mine.yaml", "SUITE=mine").stdout
        assert "suite=mine" in commands or "--suite mine" in commands
    commands = make("figures", "SOURCE=published").stdout
    assert "snakemake --cores 2 all extended --config suite=mini-published" in commands
    refused = make("figures", "SOURCE=cache")
    assert refused.returncode and "SOURCE=cache" in refused.stderr


def test_a_table_is_redrawn_from_published_measurements(checkout):
    target = "results/mini-published/tables/table1.md"
    run = snakemake("--cores", "2", target, folder=checkout)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "stored measurements" in (checkout / target).read_text()
    audit = pd.read_csv(checkout / "results/mini-published/audit.csv")
    probed = pd.read_csv(sorted(MINI.glob("probes/*-step5720.csv"))[0])
    audited_gaps = audit.loc[audit["step"] == 5720, "gap_pct"].tolist()
    probed_gaps = probed.loc[probed["step"] == 5720, "gap_pct"].tolist()
    assert audited_gaps == probed_gaps
    assert planned(target, folder=checkout) == {}


def test_a_damaged_file_stops_the_run_in_one_line(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    name = "resources/published/mini/suite.csv"
    path = folder / name
    for spoil, reason in ((lambda: path.write_text("1\n"), "damaged"), (path.unlink, "missing")):
        spoil()
        run = snakemake("--cores", "1", "results/mini-published/kurtosis.csv", folder=folder)
        assert run.returncode != 0 and "Traceback" not in run.stdout
        error_lines = [line for line in run.stdout.splitlines() if line.startswith("Error: ")]
        assert name in error_lines[-1] and reason in error_lines[-1]
        with pytest.raises((DamagedFile, OSError)):
            outputs = [tmp_path / "results" / name for name in read_digests(MINI)]
            restore_measurements.main(str(path.parent), outputs)
        assert files_of(tmp_path / "results") == {}


@pytest.mark.slow
def test_everything_is_redrawn_from_published_measurements(checkout):
    run = snakemake("--cores", "2", *PUBLISHED, "--", "all", "extended", folder=checkout)
    assert run.returncode == 0, run.stdout[-3000:]
    root = checkout / "results/mini-published"
    for name in (
        *("figures/fig3_forks.pdf", "claims.md", "tables/table2.tex", "notebooks/tour.html"),
        *("notebooks/forks.html", "index.html"),
    ):
        assert (root / name).stat().st_size > 500, name
    assert not (root / "checkpoints").exists()
    assert "stored measurements" in (root / "index.html").read_text()
    assert "is not Pythia" in (root / "notebooks/tour.html").read_text()


@pytest.mark.slow
def test_a_fresh_run_measures_the_same(tmp_path):
    """A complete run of mini, as long as the README says.

    With the versions and the processor that measured, every file has the same bytes. Another
    processor rounds some sum differently, and the training takes another course. Then means
    over the last tenth of the run are compared. They may differ as much as means of different
    seeds do: 5 % of FP32 perplexity, 3 percentage points of the INT4 gap and 0.3 of the INT8 gap.
    """
    folder = copy_checkout(tmp_path / "fresh")
    suite = read_suite("mini", [])
    targets = [f"results/mini/{name}" for name in measured_files(suite)]
    run = snakemake("--cores", "2", *targets, folder=folder)
    assert run.returncode == 0, run.stdout[-3000:]
    fresh = folder / "results/mini"
    made_by = json.loads(sorted(fresh.glob("probes/*.json"))[0].read_text())
    same = all(made_by[key] == PROVENANCE[key] for key in ("python", "packages", "device"))
    if same and machine()["cpu"] == PROVENANCE["machine"]["cpu"]:
        measured = [name for name in measured_files(suite) if not name.endswith(".json")]
        different = [
            name for name in measured if (fresh / name).read_bytes() != (MINI / name).read_bytes()
        ]
        assert different == []
        return
    means_at_the_end = []
    for root in (fresh, MINI):
        probes = pd.concat(pd.read_csv(path) for path in sorted(root.glob("probes/step*-*.csv")))
        late = probes[probes["step"] > 0.9 * probes["step"].max()]
        means_at_the_end.append(late.groupby("role")[["ppl", "gap_pct"]].mean())
    new, old = means_at_the_end
    assert new.loc["fp32", "ppl"] == pytest.approx(old.loc["fp32", "ppl"], rel=0.05)
    for role, points in (("low_bit", 3.0), ("high_bit", 0.3)):
        assert new.loc[role, "gap_pct"] == pytest.approx(old.loc[role, "gap_pct"], abs=points)
