"""The rules: their declarations, the jobs they plan, errors for mistakes, and style."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from flatminima.code_hash import code_hash
from tests.workflow import ROOT, copy_checkout, declared_rules, dry_run, planned, snakemake

pytestmark = pytest.mark.workflow


def test_every_rule_declares_everything_under_its_name():
    """Logs and benchmarks have the name of the rule, or of its script after ``use rule``.

    Only two rules share a log: forks whose weights are kept, and forks whose weights are not.
    """
    rules = dict(declared_rules())
    del rules["all"], rules["extended"]
    assert len(rules) > 30
    users = defaultdict(set)
    notebook_hashes = []
    for name, rule in rules.items():
        script = Path(rule["script"] or name).stem
        assert rule["docstring"] and rule["message"], name
        assert (ROOT / "rules" / rule["conda"]).is_file(), name
        for path, top in ((rule["log"], "logs"), (rule["benchmark"], "benchmarks")):
            assert re.match(rf"{top}/.*/({script}|{name})[./]", path), (name, path)
            users[re.sub(r"\{(\w+),[^/]*?\}", r"{\1}", path)].add(name)
        notebooks = [path for path in rule["inputs"] if path.endswith(".ipynb")]
        if rule["script"]:
            assert rule["code"] == code_hash(f"workflow_scripts/{script}.py", *notebooks), name
        if name.startswith("render_notebook_"):
            notebook_hashes.append(rule["code"])
    shared = [names for names in users.values() if len(names) > 1]
    assert [name for names in shared for name in names if "_fork" not in name] == []
    assert len(set(notebook_hashes)) == len(notebook_hashes) == 6
    scripts = {path.stem for path in (ROOT / "workflow_scripts").glob("*.py")} - {"__init__"}
    used = {Path(rule["script"]).stem for rule in rules.values() if rule["script"]}
    assert scripts == used


def test_every_script_ends_with_the_call_of_run():
    for path in (ROOT / "workflow_scripts").glob("[a-z]*.py"):
        guard = r'if __name__ == "__main__":\n    (style\.)?run(_job)?\(\w+, snakemake\)\n\Z'
        assert re.search(guard, path.read_text()), path


def test_lint_and_format():
    lint = snakemake("--lint")
    assert lint.returncode == 0, lint.stdout[-3000:]
    for command in (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["snakefmt", "--check", "Snakefile", "rules"],
        ["nbstripout", "--keep-id", "--verify", *map(str, ROOT.glob("notebooks/*.ipynb"))],
    ):
        tool = Path(sys.executable).parent / command[0]
        run = subprocess.run(
            [tool, *command[1:]], cwd=ROOT, text=True, capture_output=True, check=False
        )
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("clean"))


def test_a_complete_suite_is_planned(clean):
    single_jobs = {
        *("gather_audit", "judge_claims", "plot_audit", "plot_kurtosis", "plot_forks"),
        *("tabulate_audit", "tabulate_forks", "compute_statistics", "render_notebook_tour"),
        *("render_notebook_audit", "render_notebook_kurtosis", "render_notebook_forks"),
        *("gather_suite", "gather_kurtosis", "detect_phases", "judge_claims_paper", "all"),
    }
    mini = planned(folder=clean)
    paper = planned("--config", "suite=pythia-160m", folder=clean)
    for jobs in (mini, paper):
        assert {rule: jobs.get(rule) for rule in single_jobs} == dict.fromkeys(single_jobs, 1)
        trained = jobs.get("train_fork", 0) + jobs.get("train_fork_temporary", 0)
        assert trained == jobs["probe_fork"] == 18, "every fork and its cool-down"
    assert mini["collect_text"] == mini["fix_batches"] == 1
    assert paper["collect_split"] == paper["fix_split"] == 2
    for rule in ("probe_checkpoints", "measure_kurtosis", "describe_checkpoints"):
        assert mini[rule] == 2 and rule not in paper
    assert mini["pretrain_suite_mini_step2800"] == mini["pretrain_suite_mini_step5720"] == 1
    assert not any(rule.startswith("fetch") or "pythia" in rule or "tiny" in rule for rule in mini)
    assert paper["probe_revision"] == 154 and paper["fetch_tokenizer"] == 1
    assert paper["fetch_checkpoint"] == 1, "the start of the forks"
    assert "train_fork_temporary" not in mini and "train_fork" not in paper
    assert not any(rule.startswith(("pretrain_suite", "train_tokenizer")) for rule in paper)


DATA = {"collect_text": 1, "train_tokenizer": 1, "fix_batches": 1}
HALF = DATA | {"pretrain_suite_mini_step2800": 1}
TRAINING = HALF | {"pretrain_suite_mini_step5720": 1}
SUITE = TRAINING | {"describe_checkpoints": 2, "gather_suite": 1}
# Revisions are gathered only after the check of their integrity.
AUDIT = SUITE | {"probe_checkpoints": 2, "summarise_probes": 2, "gather_audit": 1}
PHASES = AUDIT | {"detect_phases": 1}


def forked(count: int) -> dict[str, int]:
    """Jobs that train, probe and gather ``count`` conditions."""
    jobs = dict.fromkeys(("train_fork", "probe_fork", "summarise_fork"), count)
    return jobs | {"gather_forks": 1}


# All jobs that a target needs.
TARGETS = {
    "data/validation.safetensors": DATA,
    "checkpoints/step2840/config.json": TRAINING,
    "deployed.csv": TRAINING | {"probe_deployed": 1},
    "probes/step5720.parquet": TRAINING | {"probe_checkpoints": 1},
    "probes/step2760-step2840.csv": TRAINING | {"probe_checkpoints": 1, "summarise_probes": 1},
    "kurtosis/step0-step2800.csv": HALF | {"measure_kurtosis": 1},
    "revisions/step512.csv": HALF | {"describe_checkpoints": 1},
    "forks/oli-seed0.csv": HALF | {"train_fork": 1, "probe_fork": 1, "summarise_fork": 1},
    "forks/kurtosis/oli-seed0.csv": HALF | {"train_fork": 1, "measure_kurtosis_of_fork": 1},
    "kurtosis.csv": SUITE | {"measure_kurtosis": 2, "gather_kurtosis": 1},
    "phases.json": PHASES,
    "figures/fig1_audit.svg": PHASES | {"plot_audit": 1},
    "figures/fig3_forks.pdf": AUDIT | forked(18) | {"gather_forks": 2, "plot_forks": 1},
    "cycles.csv": HALF | forked(6),
    "variants/wsd-seed7.csv": HALF | {"train_fork": 1, "probe_fork": 1, "summarise_fork": 1},
    "averages/lawa_5.csv": TRAINING | {"average_checkpoints": 1},
    "calibration.json": HALF | {"calibrate_amplitude": 1},
    "pilot.csv": HALF | forked(14),
    "amplitudes.csv": HALF | forked(12),
    "figures/fig8_rivals.png": TRAINING
    | forked(9 + 18)
    | {"average_checkpoints": 5, "gather_rivals": 1, "plot_rivals": 1},
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_plans_exactly_the_jobs_that_it_needs(target, clean):
    assert planned(f"results/mini/{target}", folder=clean) == TARGETS[target]


def test_one_claim_one_revision_and_the_printed_tables(clean):
    jobs = planned("results/mini/claims/C39.json", folder=clean)
    assert jobs["judge_claims_one"] == 1 and jobs["train_fork"] == 18
    drawn = ("plot", "tabulate", "render", "judge_claims_p")
    assert not any(rule.startswith(drawn) for rule in jobs)
    jobs = planned("results/pythia-160m/probes/step70000.csv", folder=clean)
    # The training text of the forks is not fetched.
    data = {"fetch_tokenizer": 1, "collect_split": 1, "fix_split": 1}
    assert jobs == data | {"probe_revision": 1, "summarise_probes": 1}
    paper = ("results/paper/claims.md", "results/paper/claims/C63.json")
    assert planned(*paper, folder=clean) == {"judge_claims_paper": 1, "judge_claims_paper_one": 1}


MISTAKEN_TARGETS = {
    "results/foo/audit.csv": "suite 'foo' is not known; valid: mini, pythia-160m",
    "results/mini/probes/step1001.csv": "nearest: 1000 and 1040",
    "results/mini/forks/olli-seed0.csv": "suite mini: forks 'olli' is not known; did you mean oli?",
    "results/mini/cycles/sgdr-bumpfirst-seed0.csv": "'sgdr-bumpfirst' is not known; did you mean",
    "results/mini/variants/wds-seed0.csv": "variants 'wds' is not known; did you mean wsd?",
    "results/mini/averages/lawa.csv": "suite mini: average 'lawa' is not known; did you mean lawa",
    "results/mini/claims/C999.json": "claims.yaml: claim 'C999' is not known; valid: C01",
    "results/pythia-70m/forks.csv": "suite pythia-70m: config key fork.seeds is needed for this",
    "results/mini-published/probes/step0.csv": "stored measurements only",
    "results/pythia-160m/checkpoints/step1001/model.safetensors": "nearest: 1000 and 2000",
}


def error_line(text: str) -> str:
    """The only error line of an output. It must be the last line."""
    assert "Traceback" not in text and 'File "' not in text, text[-2000:]
    lines = [line for line in text.splitlines() if line.startswith("Error")]
    assert len(lines) == 1 and text.rstrip().endswith(lines[0]), text[-2000:]
    return lines[0]


def test_a_mistaken_target_gives_one_line(clean):
    for target, part in MISTAKEN_TARGETS.items():
        run = dry_run(target, folder=clean)
        assert run.returncode == 1
        assert part in error_line(run.stdout), target


def test_a_mistaken_configuration_gives_one_line(clean, tmp_path):
    new_suite = "suites={mine: {extends: mini, label: mine, threads: %s}}"
    run = dry_run("--config", new_suite % 2, "suite=mine", folder=clean)
    assert run.returncode == 0, run.stdout[-3000:]
    mistaken = ("--configfile", str(tmp_path / "mistaken.yaml"))
    for arguments, text, part in (
        (mistaken, "suites: {mini: {training: {lr_mx: 1.0}}}", "lr_mx is not known; did you mean"),
        (mistaken, "suite: mini\nsuite: mini", "line 2: duplicate key suite"),
        (mistaken, "suites: {mini: {grid: {last: 400}}}", "mini.grid lacks powers_of_two"),
        (mistaken, "suites: {mini: {measurements: a}}", "measurements is not known"),
        (
            ("--config", new_suite % "two"),
            "",
            "suites.mine.threads: 'two' is not valid; valid: a whole number",
        ),
    ):
        (tmp_path / "mistaken.yaml").write_text(text)
        run = dry_run(*arguments, folder=clean)
        assert run.returncode == 1
        assert part in error_line(run.stdout)


def test_a_file_over_the_configuration_replaces_a_section_as_extends_does(clean, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("""
      suites:
        mini:
          training: {jobs_end_at: [5720]}
          text:
            source: files
            validation: [{repo: a/b, file: c.txt}]
            train: [{repo: a/b, file: c.txt}]
          fork:
        pythia-160m:
          grid: {steps: [70000, 100000]}
          fork:
          mechanism:
    """)
    jobs = planned("results/mini/audit.csv", "--configfile", str(path), folder=clean)
    assert jobs["pretrain_suite_mini_step5720"] == 1
    jobs = planned("results/pythia-160m/audit.csv", "--configfile", str(path), folder=clean)
    assert jobs["probe_revision"] == 2
    text = "suites={mini: {fork: {schedules: {cosine: {kind: cosine}}, amplitudes: , primary: }}}"
    jobs = planned("results/mini/forks.csv", "--config", text, folder=clean)
    assert jobs["train_fork"] == 3


def test_a_suite_whose_fork_is_removed_plans_nothing_that_needs_forks(clean, tmp_path):
    (tmp_path / "mine.yaml").write_text("suites: {mini: {fork: }, pythia-160m: {fork: }}\n")
    run = dry_run("--configfile", str(tmp_path / "mine.yaml"), folder=clean)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "probe_checkpoints" in run.stdout and "results/mini/notebooks/audit.html" in run.stdout
    for name in ("train_fork", "results/mini/claims", "table2", "tour.html", "fig3_forks"):
        assert name not in run.stdout
