"""Mappings that are given with ``--config`` mean what they would mean in a file."""

import pytest
import yaml
from snakemake.cli import parse_config

from flatminima.config.command_line import as_in_a_file
from tests.workflow import snakemake


@pytest.mark.parametrize(
    "text",
    ["{threads: 2, training: {lr_max: 0.02, schedule: cosine}}", "{label: 'a: b', steps: [1, 2]}",
     "{fork: }", "{keep: true, name: '@', list: [x, 1.5, {deep: 3}]}", "{day: 2026-13-45}", "{}"],
)  # fmt: skip
def test_a_mapping_of_the_command_line_is_read_as_in_a_file(text):
    (given,) = parse_config([f"suites={text}"]).values()
    assert as_in_a_file(given) == yaml.safe_load(text.replace("2026-13-45", "'2026-13-45'"))


@pytest.mark.parametrize("text", ["&a [*a]", "!!python/object/apply:os.system [x]", "{a: 1}", "["])
def test_text_of_the_command_line_stays_text(text):
    assert as_in_a_file({"label": text}) == {"label": text}


@pytest.mark.workflow
def test_a_number_within_a_mapping_of_the_command_line_is_a_number():
    new = "{mine: {extends: mini, label: mine, is_paper_model: false, threads: %s}}"
    run = snakemake("--dry-run", "--config", f"suites={new % 2}", "suite=mine")
    assert run.returncode == 0, run.stdout[-3000:]
    run = snakemake("--dry-run", "--config", f"suites={new % 'two'}", "suite=mine")
    assert run.returncode != 0
    assert "Error: config key suites.mine.threads: 'two' is not a whole number" in run.stdout
