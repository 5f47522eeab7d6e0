"""The workflow run from another folder, and as a module of another workflow."""

import pytest

from tests.workflow import ROOT, snakemake

FIGURE = "results/mini-published/figures/fig1_audit.png"
LAMBADA = "results/paper/figures/fig4_lambada.png"
CALLER = """
configfile: "config.yaml"

rule mine:
    input: "{figure}"
    output: "mine.png"
    shell: "cp {{input}} {{output}}"

module flat:
    snakefile: "{root}/Snakefile"
    {config}

use rule * from flat{names}
"""


@pytest.mark.workflow
def test_another_folder_plans_everything_and_draws_a_figure(tmp_path):
    elsewhere = ("-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path))
    planned = snakemake("-n", *elsewhere, folder=tmp_path)
    assert planned.returncode == 0 and "pretrain_suite" in planned.stdout, planned.stdout
    drawn = snakemake("--cores", "1", *elsewhere, FIGURE, folder=tmp_path)
    assert drawn.returncode == 0 and (tmp_path / FIGURE).is_file(), drawn.stdout
    assert "othing to be done" in snakemake("-n", *elsewhere, FIGURE, folder=tmp_path).stdout


@pytest.mark.workflow
def test_a_configuration_in_the_other_folder_comes_after_the_workflows_own(tmp_path):
    (tmp_path / "config.yaml").write_text("suite: mini-published\n")
    planned = snakemake("-n", "-s", str(ROOT / "Snakefile"), folder=tmp_path)
    assert planned.returncode == 0, planned.stdout
    assert "restore_measurements" in planned.stdout and "pretrain_suite" not in planned.stdout


@pytest.mark.workflow
@pytest.mark.parametrize("config", ['config: config["flat"]', ""])
def test_a_module_plans_and_draws_a_figure(tmp_path, config):
    caller = CALLER.format(
        root=ROOT, config=config, figure=LAMBADA, names="" if config else " as flat_*"
    )
    (tmp_path / "Snakefile").write_text(caller)
    (tmp_path / "config.yaml").write_text("own: 1\nflat: {suite: mini-published}\n")
    planned = snakemake("-n", "all" if config else "flat_all", folder=tmp_path)
    assert planned.returncode == 0, planned.stdout
    assert ("pretrain_suite" in planned.stdout) != bool(config)
    if config:
        built = snakemake("--cores", "1", "mine.png", folder=tmp_path)
        assert built.returncode == 0, built.stdout
        assert (tmp_path / "mine.png").read_bytes() == (tmp_path / LAMBADA).read_bytes()
