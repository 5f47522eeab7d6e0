"""The rules: names, parts, closedness, plans, style."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.workflow import ROOT, planned, snakemake

pytestmark = pytest.mark.workflow

RULE_FILES = sorted((ROOT / "rules").glob("*.smk"))
# Rules that are generated, one per training job or notebook, carry their base name first.
NAMED = re.compile(r'name:\s*f"(\w+?)_\{')


def rule_blocks() -> list[tuple[str, str]]:
    """Base name and text of each rule that has a script of its own."""
    blocks = []
    for path in RULE_FILES:
        for block in re.split(r"^(?=\s*(?:use )?rule\b.*:$)", path.read_text(), flags=re.MULTILINE):
            if re.match(r"\s*use rule", block) or not re.match(r"\s*rule\b", block):
                continue
            named = re.match(r"\s*rule (\w+):", block)
            base = named[1] if named else NAMED.search(block)[1].split("_{")[0]
            blocks.append((base, block))
    return blocks


BLOCKS = rule_blocks()


def test_rules_are_found():
    assert len(BLOCKS) >= 25
    assert {"pretrain_suite", "render_notebook", "probe_checkpoints"} <= {
        name for name, _ in BLOCKS
    }


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_one_name_runs_through_a_rule(name, block):
    assert f'"../workflow_scripts/{name}.py"' in block
    assert (ROOT / "workflow_scripts" / f"{name}.py").is_file()
    for directive, folder in [("log", "logs"), ("benchmark", "benchmarks")]:
        path = re.search(rf'{directive}:\s*f?"([^"]+)"', block)[1]
        assert path.startswith(f"{folder}/"), path
        assert name in path.split("/")[2], path
    assert f'code_hash("workflow_scripts/{name}.py"' in block
    for directive in ("conda:", "message:", "params:", "output:"):
        assert directive in block, directive


@pytest.mark.parametrize("path", RULE_FILES, ids=[path.name for path in RULE_FILES])
def test_rule_files_say_what_they_need_and_make(path):
    text = path.read_text()
    assert text.startswith('"""')
    if path.name != "common.smk":
        assert "REQUIRED INPUTS" in text and "OUTPUTS" in text


def test_every_script_belongs_to_a_rule():
    scripts = {path.stem for path in (ROOT / "workflow_scripts").glob("*.py")} - {"__init__"}
    assert scripts == {name for name, _ in BLOCKS}


@pytest.mark.parametrize(
    "script", sorted((ROOT / "workflow_scripts").glob("[a-z]*.py")), ids=lambda path: path.stem
)
def test_scripts_are_thin(script):
    lines = [line for line in script.read_text().splitlines() if line.strip()]
    assert len(lines) <= 42, f"{script.name}: {len(lines)} lines"
    assert 'if __name__ == "__main__":' in script.read_text()
    assert "logged(snakemake.log[0])" in script.read_text()


def test_library_knows_neither_snakemake_nor_a_command_line():
    for path in (ROOT / "workflow_scripts" / "lib").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) (snakemake|argparse)\b", text, re.MULTILINE), path
        assert "snakemake." not in re.sub(r'""".*?"""|#.*', "", text, flags=re.DOTALL), path


def test_lint_and_format():
    lint = snakemake("--lint")
    assert lint.returncode == 0, lint.stdout[-3000:]
    for command in (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["snakefmt", "--check", "Snakefile", "rules"],
    ):
        tool = Path(sys.executable).parent / command[0]
        run = subprocess.run(
            [tool, *command[1:]], cwd=ROOT, text=True, capture_output=True, check=False
        )
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


def test_environments_pin_what_the_lock_file_pins():
    lines = (ROOT / "envs" / "requirements.lock").read_text().splitlines()
    pins = dict(
        line.split(";")[0].strip().split("==") for line in lines if line and line[0] not in "# "
    )
    assert pins["torch"] == "2.13.0"
    for path in sorted((ROOT / "envs").glob("*.yaml")):
        for pin in yaml.safe_load(path.read_text())["dependencies"]:
            name, version = pin.split("=")
            if name != "python":
                name = {"pytorch": "torch", "arch-py": "arch"}.get(name, name).replace("_", "-")
                assert pins[name] == version, f"{path.name}: {pin}"


def test_mini_is_planned_whole(tmp_path):
    jobs = planned("--config", "suite=mini", "--forceall")
    assert jobs["train_fork"] == 9
    assert jobs["pretrain_suite_mini_step2800"] == jobs["pretrain_suite_mini_step5720"] == 1
    assert jobs["probe_checkpoints"] == 2
    assert {"judge_claims", "plot_audit", "plot_kurtosis", "plot_forks"} <= set(jobs)
    assert sum(rule.startswith("render_notebook_") for rule in jobs) == 4


def test_the_paper_is_planned_whole():
    jobs = planned("--config", "suite=pythia-160m")
    assert jobs["fetch_checkpoint"] == 154
    assert jobs["probe_checkpoints"] == jobs["measure_kurtosis"] == 77
    assert jobs["train_fork"] == 9
    assert jobs["fetch_tokenizer"] == jobs["all"] == 1
    assert not any(rule.startswith(("pretrain_suite", "train_tokenizer")) for rule in jobs)


TARGETS = {
    "tables/table1.csv": (
        {"tabulate_audit", "probe_checkpoints"}, {"train_fork", "measure_kurtosis"},
    ),
    "figures/fig3_forks.pdf": ({"plot_forks", "train_fork"}, {"measure_kurtosis", "judge_claims"}),
    "probes/step1000.csv": (
        {"probe_checkpoints", "pretrain_suite_mini_step2800"},
        {"train_fork", "pretrain_suite_mini_step5720", "gather_audit"},
    ),
    "forks/oli-seed0.csv": (
        {"train_fork", "pretrain_suite_mini_step2800"},
        {"probe_checkpoints", "pretrain_suite_mini_step5720", "gather_forks"},
    ),
    "checkpoints/step40/model.safetensors": (
        {"pretrain_suite_mini_step2800"}, {"pretrain_suite_mini_step5720", "probe_checkpoints"},
    ),
    "claims/C39.json": ({"judge_claims_one"}, {"plot_audit", "render_notebook_tour"}),
    "cycles.csv": ({"train_fork_cycles"}, {"train_fork", "probe_checkpoints"}),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_needs_only_what_it_needs(target):
    needed, unneeded = TARGETS[target]
    jobs = planned(f"results/mini/{target}", "--forceall")
    assert needed <= set(jobs)
    assert not unneeded & set(jobs)
    if target.startswith(("probes", "forks/")):
        assert jobs.get("train_fork", jobs.get("probe_checkpoints")) == 1


def test_the_printed_tables_need_no_model():
    assert planned("results/paper/claims.md", "--forceall") == {"judge_claims_paper": 1}


def test_inputs_are_made_or_committed():
    """No rule reads a file that neither another rule makes nor git holds."""
    summary = snakemake("--quiet", "host", "--dry-run", "--forceall", "all")
    assert summary.returncode == 0
    tracked = set(subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n"))
    for path in re.findall(r'"((?:resources|notebooks)/[^"{]+)"', "".join(b for _, b in BLOCKS)):
        assert path in tracked, path
    produced = "".join(
        re.findall(r"output:(.*?)\n    \w+:", "".join(b for _, b in BLOCKS), re.DOTALL)
    )
    for path in re.findall(r'"results/\{suite\}/([\w./]+)"', "".join(b for _, b in BLOCKS)):
        stem = path.rsplit(".", 1)[0]
        assert stem in produced, f"{path} has no rule"


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("results/foo/audit.csv", "Error: config key suite: 'foo' is not known; valid: mini"),
        ("results/mini/probes/step1001.csv", "Error: suite mini: step 1001 is not a revision"),
        ("results/mini/forks/olli-seed0.csv", "did you mean oli? valid: cosine, sgdr, oli"),
    ],
)
def test_a_mistaken_target_is_one_line(target, line):
    run = snakemake("--dry-run", target)
    assert run.returncode != 0
    assert line in run.stdout
    assert "Traceback" not in run.stdout
    assert sum(part.startswith("Error") for part in run.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("suite=minni", "config key suite: 'minni' is not known; did you mean mini?"),
        ("sute=mini", "config key sute is not known; did you mean suite?"),
    ],
)
def test_a_mistaken_key_is_one_line(setting, line):
    run = snakemake("--dry-run", "--config", setting)
    assert run.returncode != 0
    assert line in run.stdout
    assert "Job stats" not in run.stdout
