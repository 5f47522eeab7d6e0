"""The headline: two revisions, then ten, beside the paper's numbers, with the ledger's verdicts."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from flatminima.claims import headline
from flatminima.claims.evidence import Measured
from flatminima.config import plan, plan_parts
from flatminima.config.loading import check_config, resolve_suites
from flatminima.config.plan import ledger_facts
from flatminima.config.suites import Suite, find_suite, read_suite
from flatminima.errors import ConfigError, UserError
from flatminima.files import read_digests
from flatminima.tools import part_costs
from flatminima.tools.publish import finished_part, measured_line, publish, write_measured_line
from tests import test_plan
from tests.hub import pythia
from tests.hub.server import TinyHub, point_at
from tests.test_claims import LEDGER, PATHS, PYTHIA, audit, measured, paper
from tests.workflow import ROOT, copy_checkout, planned
from workflow_scripts import state_headline

TABLE_1 = [1000, 7000, 10000, 30000, 70000, 77000, 83000, 100000, 120000, 143000]
OVERRIDE = """
suites:
  pythia-160m:
    label: tiny stand-ins for Pythia's revisions (test suite, not Pythia)
    device: cpu
    threads: 1
    architecture: {hidden_size: 16, num_layers: 2, num_heads: 2, max_length: 16, vocab_size: 320}
    batches:
      validation: {sequences: 32, length: 16}
      train: {sequences: 64, length: 16}
    probe: {low_bit: int4_g16, batch_size: 8, resamples: 50}
    fork:
    mechanism:
"""
HEADLINE = ("results/pythia-160m/headline.html", "--configfile", "headline.yaml")


def part(steps: list[int], gap: float = 1.0) -> Measured:
    """Some steps of a run through Table 1, whose INT4 gaps are multiplied by ``gap``."""
    rows = audit(PYTHIA)
    rows.loc[rows["role"] == "low_bit", ["gap_pct", "gap_low_pct", "gap_high_pct"]] *= gap
    rows = rows[rows["step"].isin(steps)]
    suite_table = pd.DataFrame({"step": steps, "status": "present", "weights_sha256": "a"})
    return Measured(LEDGER.pythia, paper(), PYTHIA, {"audit": rows, "suite_table": suite_table})


def verdicts(run: Measured) -> dict[str, str]:
    decided, _ = headline.decided_claims(LEDGER, paper(), run)
    return {claim.judged.row.id: claim.verdict for claim in decided}


def test_two_revisions_decide_the_size_of_the_collapse_and_nothing_else():
    for gap, verdict in ((1.0, "confirmed"), (0.5, "refuted"), (1.2, "cannot be told")):
        assert verdicts(part([70_000, 143_000], gap)) == {"C25": verdict}
    _, undecided = headline.decided_claims(LEDGER, paper(), part([70_000, 143_000]))
    [need] = [need for need, rows in undecided.items() if "C39" in {j.row.id for j in rows}]
    assert need == "needs all 143 evenly spaced checkpoints (2 measured)"
    assert any("forks" in need for need in undecided)


def test_ten_revisions_decide_the_columns_of_table_1():
    run = part(TABLE_1)
    decided = verdicts(run)
    assert decided.pop("C32") == "refuted", "the paper's own rows contradict this sentence"
    # X49 compares differences of close gaps, for which intervals of this width tell nothing.
    confirmed = dict.fromkeys(("C25", "C06", "C16", "C26"), "confirmed")
    assert decided == {**confirmed, "X49": "cannot be told"}
    assert verdicts(part(TABLE_1, gap=0.5))["C16"] == "refuted"
    for claim in ("C36", "C39", "C33", "C27"):  # best step, onset, ranges, largest of all
        assert measured(claim, run) == "not measured"


def test_every_bound_on_a_number_is_the_ledgers():
    bounds = headline.bounds_of_cells(LEDGER, paper())
    counts = Counter(bound.claim for bound in bounds.values())
    assert counts == {"C06": 10, "C16": 9, "C25": 1, "C26": 3}
    final = bounds["int4_gap_pct", 143_000]
    assert (final.low, final.high) == pytest.approx((0.8 * 517.1, 1.2 * 517.1))
    assert bounds["fp32_ppl", 70_000].high == pytest.approx(1.03 * 33.7)


def extended(**keys: object) -> Suite:
    """A suite that extends pythia-160m."""
    suites = test_plan.CONFIG["suites"]
    own = {"extends": "pythia-160m", "label": "mine", **keys}
    complete = resolve_suites({**suites, "mine": own}, {})
    return find_suite(check_config({**test_plan.CONFIG, "suites": complete}), "mine")


def test_some_revisions_of_the_papers_run_are_still_the_papers_model():
    ten = extended(grid={"steps": TABLE_1})
    assert ten.config.is_paper_model and ten.config.fork is None
    facts = ledger_facts(ten)
    assert facts["spacing"] == 1000, "the ledger knows how many there are"
    assert "forks" not in plan.ledger_files(ten)
    for other in (
        {"repo": "EleutherAI/pythia-70m"},
        {"batches": {"validation": {"length": 256}}},
        {"probe": {"low_bit": "int4_g64"}},
    ):
        assert not extended(**other).config.is_paper_model


def test_parts_are_ranges_of_the_complete_suite():
    pythia_suite = test_plan.PYTHIA
    assert plan_parts.part_steps(pythia_suite, "headline") == [70_000, 143_000]
    assert plan_parts.part_steps(pythia_suite, "table1") == TABLE_1
    assert plan_parts.part_ranges(pythia_suite, "table1") == [f"step{step}" for step in TABLE_1]
    # Another model: its first and last evenly spaced step, and the paper's fraction of the run.
    mini = test_plan.MINI
    assert plan_parts.part_steps(mini, "headline") == [40, 2800, 5720]
    assert plan_parts.part_facts(mini, "headline")["ledger"] is None
    with pytest.raises(ConfigError, match="make headline"):
        plan_parts.part_steps(Suite("nowhere", mini.config, mini.quantizers), "measured")


# ---- on a hub ----


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict:
    """A checkout with the headline of revisions whose INT4 gap grows, and the hub's log."""
    folder = copy_checkout(tmp_path_factory.mktemp("headline"))
    (folder / "headline.yaml").write_text(OVERRIDE)
    factors = dict.fromkeys(TABLE_1, 1.0) | {143_000: 64.0}
    with TinyHub(pythia.models_that_collapse(factors), pythia.datasets()) as hub:
        run = subprocess.run(
            [sys.executable, "-m", "snakemake", "--cores", "2", *HEADLINE],
            cwd=folder,
            env=hub.environment(tmp_path_factory.mktemp("home")),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        weights = [request.path for request in hub.asked("^/lfs/.*/model.safetensors")]
        training_text = hub.asked("train/00")
    assert run.returncode == 0, run.stdout[-4000:]
    return {"folder": folder, "weights": weights, "training_text": training_text}


@pytest.mark.workflow
def test_two_revisions_are_fetched_and_the_rest_fetches_only_what_is_new(built):
    assert len(built["weights"]) == 2 and not built["training_text"]
    folder = built["folder"]
    assert planned(*HEADLINE, folder=folder) == {}
    config = HEADLINE[1:]
    ten = planned("results/pythia-160m/table1.html", *config, folder=folder)
    complete = planned("results/pythia-160m/claims.html", *config, folder=folder)
    assert ten["probe_revision"] == 8 and complete["probe_revision"] == 152
    for jobs in (ten, complete):
        assert "collect_split" not in jobs, "the text is there, and the training text is not needed"
        assert "train_fork" not in jobs
    part_claims = planned("results/pythia-160m/measured/claims.html", *config, folder=folder)
    assert "probe_revision" not in part_claims


def restated(built: dict, tmp_path: Path, printed_gap: str) -> tuple[dict, str, str]:
    """The page's rows, Markdown and HTML, if the paper printed another gap at step 143,000."""
    root = built["folder"] / "results/pythia-160m"
    table1 = Path(PATHS["table1"]).read_text().replace("517.1", printed_gap)
    (tmp_path / "table1.csv").write_text(table1)
    inputs = PATHS | {
        "table1": str(tmp_path / "table1.csv"),
        "audit": str(root / "headline/audit.csv"),
        "suite_table": str(root / "headline/suite.csv"),
        "manifest": str(root / "data/validation.json"),
        "provenance": [str(root / f"probes/step{step}.json") for step in (70_000, 143_000)],
        "headline_html": str(ROOT / "resources/templates/headline.html.j2"),
        "headline_md": str(ROOT / "resources/templates/headline.md.j2"),
    }
    outputs = [str(tmp_path / f"headline.{ending}") for ending in ("csv", "md", "html")]
    suite = plan_parts.part_facts(test_plan.PYTHIA, "headline")
    state_headline.main(inputs, outputs, suite)
    rows = pd.read_csv(outputs[0], keep_default_na=False)
    return rows, Path(outputs[1]).read_text(), Path(outputs[2]).read_text()


@pytest.mark.workflow
def test_each_verdict_comes_out_of_the_measured_probes(built, tmp_path):
    audited = pd.read_csv(built["folder"] / "results/pythia-160m/headline/audit.csv")
    rows = audited.set_index(["step", "role"])
    final = rows.loc[143_000, "low_bit"]
    assert final["gap_pct"] > 100 and rows.loc[(143_000, "high_bit"), "gap_pct"] < 3
    assert abs(rows.loc[(70_000, "low_bit"), "gap_pct"]) < 15
    # The large columns are a scale that equalization takes away.
    assert rows.loc[(143_000, "int4_g128_equalized"), "gap_pct"] < 0.2 * final["gap_pct"]
    fp32 = [rows.loc[(step, "fp32"), "ppl"] for step in (70_000, 143_000)]
    assert fp32[0] == pytest.approx(fp32[1], rel=0.01), "FP32 does not see the large columns"
    # The interval is compared with 0.8 to 1.2 times the printed gap.
    gaps = {
        "confirmed": (final["gap_low_pct"] + final["gap_high_pct"]) / 2,
        "refuted": 10 * final["gap_high_pct"],
        "cannot be told": final["gap_pct"] / 1.2,
    }
    for verdict, gap in gaps.items():
        table, markdown, page = restated(built, tmp_path, f"{gap:.1f}")
        claim = table[table["kind"] == "claim"]
        if verdict == "confirmed" and final["gap_high_pct"] > 1.2 * gap:
            continue  # the interval of so little text may be wider than the bound
        assert list(claim["claim"]) == ["C25"] and list(claim["answer"]) == [verdict]
        assert verdict in markdown and verdict in page
        assert "needs all 143" in markdown and "needs all 143" in page


@pytest.mark.workflow
def test_the_probes_are_those_of_the_complete_suite(built):
    root = built["folder"] / "results/pythia-160m"
    probes = sorted(path.name for path in (root / "probes").glob("*.csv"))
    assert probes == ["step143000.csv", "step70000.csv"]
    record = json.loads((root / "probes/step70000.json").read_text())
    assert (
        record["validation_sha256"]
        == json.loads((root / "data/validation.json").read_text())["sha256"]
    )
    assert "documents_shared_with_training" not in (root / "data/validation.json").read_text()


# ---- what is published ----


def test_the_readme_says_what_is_published():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    folder = ROOT / "resources/published/pythia-160m"
    assert measured_line(folder) in page
    assert ("has not been measured" in page) == (not folder.exists())


@pytest.mark.workflow
def test_a_part_is_published_and_the_readme_follows(built, tmp_path):
    suite = read_suite("pythia-160m", [built["folder"] / "headline.yaml"])
    root = built["folder"] / suite.root
    assert finished_part(suite, root) == "headline"
    folder = tmp_path / "published"
    publish(suite, root, folder, commit="0" * 40, machine={}, part="headline")
    names = set(read_digests(folder))
    assert {"suite.csv", "probes/step70000.parquet", "data/validation.json"} <= names
    assert (folder / "suite.csv").read_bytes() == (root / "headline/suite.csv").read_bytes()
    section = yaml.safe_load((folder / "suite.yaml").read_text())["pythia-160m-published"]
    assert section["grid"] == {"steps": [70_000, 143_000], "last": 143_000}
    assert "2 of 154 revisions" in section["label"] and "fork" not in section

    page = tmp_path / "README.md"
    page.write_text((ROOT / "README.md").read_text(encoding="utf-8"))
    write_measured_line(page, folder)
    text = page.read_text()
    gap = pd.read_csv(folder / "probes/step143000.csv").set_index("role").loc["low_bit", "gap_pct"]
    assert f"{gap:.1f} %" in text and "517.1 %" in text and "2 revisions" in text
    assert "has not been measured here yet" not in text
    # The published part is a suite that answers as the results did.
    assert section["is_paper_model"] is True
    published = check_config(
        {
            **test_plan.CONFIG,
            "suites": {"published": section | {"measurements": folder.as_posix()}},
            "suite": "published",
        }
    )
    assert plan_parts.part_steps(find_suite(published, "published"), "headline") == [
        70_000,
        143_000,
    ]
    with pytest.raises(ConfigError, match="not among its revisions"):
        plan_parts.part_steps(find_suite(published, "published"), "table1")


# ---- what cannot run here ----


def test_too_little_disk_or_memory_or_no_hub_is_one_line(monkeypatch, tmp_path):
    suite = test_plan.PYTHIA
    checkpoint_bytes = 375_000_000
    part_costs.check_machine(suite, 1000)

    def use(free_bytes: float = 1e12, memory_bytes: float = 1e12) -> None:
        disk = SimpleNamespace(free=free_bytes)
        memory = SimpleNamespace(total=memory_bytes)
        monkeypatch.setattr(part_costs.shutil, "disk_usage", lambda _: disk)
        monkeypatch.setattr(part_costs.psutil, "virtual_memory", lambda: memory)

    for amounts, word in (
        ({"free_bytes": 500e6}, "disk"),
        ({"memory_bytes": 2e9}, "memory"),
    ):
        use(**amounts)
        with pytest.raises(UserError, match=word) as error:
            part_costs.check_machine(suite, checkpoint_bytes)
        assert "\n" not in str(error.value)
    use()
    part_costs.check_machine(suite, checkpoint_bytes)

    with TinyHub(pythia.models([0]), {}) as hub:
        point_at(monkeypatch, hub, tmp_path)
        part_costs.check_hub(suite)
    monkeypatch.setattr(part_costs.constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody is there
    with pytest.raises(UserError, match="HTTPS_PROXY"):
        part_costs.check_hub(suite)
    monkeypatch.setattr(part_costs.constants, "is_offline_mode", lambda: True)
    part_costs.check_hub(suite)
