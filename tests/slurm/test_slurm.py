"""The workflow on a real SLURM cluster: two nodes, simulated GPUs, the tiny suite.

Each test starts its own cluster (tests/slurm/cluster.sh). All tables must have the same bytes as
those of a run without a cluster.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from flatminima.config.keys import EvenGrid
from tests.hub import pythia
from tests.hub.server import TinyHub
from tests.workflow import ROOT, TINY, copy_checkout, declared_rules, tiny_checkout

PROGRAMS = ("slurmctld", "slurmd", "squeue", "munged", "unshare")


def reason_to_skip() -> str:
    """Why no cluster can be started on this machine; empty if it can."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "the cluster needs root"
    # The cluster has its own mounts, which many containers do not allow.
    mount = ["unshare", "--mount", "--propagation", "private", "true"]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        return "private mounts are not allowed here"
    return ""


SKIP_REASON = reason_to_skip()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.workflow,
    pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON),
]
CLUSTER = ROOT / "tests/slurm/cluster.sh"
TARGETS = " ".join(
    f"results/tiny/{name}.csv"
    for name in ("audit", "kurtosis", "forks/sgdr-seed0", "forks/oli-seed1")
)


def site_profile(folder: Path, **changes) -> str:
    """The profile of the repository, with an account, a partition and small requests."""
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
    profile["default-resources"] |= {
        "slurm_account": "test",
        "slurm_partition": "main",
        "mem_mb": "attempt * 400",
    }
    for name in declared_rules():
        megabytes = 400 if name.startswith("pretrain_suite") else 600
        profile["set-resources"][name] = {"mem_mb": f"attempt * {megabytes}"}
    profile |= {
        "slurm-init-seconds-before-status-checks": 1,
        "cores": 4,
        "latency-wait": 10,
        "jobs": 6,
    }
    (folder / "site").mkdir()
    (folder / "site/config.yaml").write_text(yaml.safe_dump(profile | changes))
    return "site"


def on_cluster(script: str, folder: Path, minutes: int, environment: dict | None = None) -> str:
    """Run a shell script on a new cluster and return its output."""
    environment = {
        name: setting
        for name, setting in (environment or os.environ).items()
        if not name.startswith("PYTEST")
    }
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}:/usr/sbin"
    run = subprocess.run(
        [CLUSTER, "timeout", f"{minutes}m", "bash", "-euc", textwrap.dedent(script)],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60 * minutes + 120,
    )
    assert run.returncode == 0, run.stdout[-5000:]
    return run.stdout


def same_tables(first: Path, second: Path) -> int:
    """Assert that all tables of two folders have the same bytes; returns their number."""
    files = [*first.glob("results/**/*.csv"), *first.glob("results/**/*.parquet")]
    tables = sorted(path.relative_to(first) for path in files)
    for table in tables:
        assert (first / table).read_bytes() == (second / table).read_bytes(), table
    return len(tables)


def test_a_cluster_gives_each_job_a_gpu_of_its_own(tmp_path):
    script = """
        for job in 1 2; do
          srun --nodelist=n1 --gpus=1 --mem=100 bash -c 'echo gpu $CUDA_VISIBLE_DEVICES; sleep 3' &
        done
        wait
    """
    printed = on_cluster(script, tmp_path, minutes=1).split()
    assert sorted(printed) == ["0", "1", "gpu", "gpu"]


def test_the_suite_with_a_drained_node_and_a_cancelled_job(tmp_path, tmp_path_factory):
    """The audit and two forks. Figures are left out: they request nothing of a cluster."""
    built = tiny_checkout(tmp_path_factory)
    folder = copy_checkout(tmp_path / "cluster")
    profile = site_profile(folder)
    script = f"""
        first() {{ squeue --noheader --states=running --format="%i %N %k" | grep -m 1 "$1"; }}
        trap "tail -n 60 snakemake.log" EXIT
        snakemake --workflow-profile {profile} --configfile {TINY} -- {TARGETS} \
          > snakemake.log 2>&1 &
        run=$!
        until job=$(first pretrain); do kill -0 $run; sleep 0.5; done
        scancel ${{job%% *}}
        until job=$(first train_fork); do kill -0 $run; sleep 0.5; done
        read -r _ node _ <<< "$job"
        scontrol update nodename=$node state=drain reason=test
        sinfo --noheader --Node --format="%N %T"
        wait $run
        squeue --noheader --states=all --format="%T %m %k" | grep pretrain
    """
    printed = on_cluster(script, folder, minutes=45)
    assert "drain" in printed
    attempts = [line.split()[:2] for line in printed.splitlines() if "pretrain" in line]
    assert ["CANCELLED", "400M"] in attempts
    assert ["COMPLETED", "800M"] in attempts
    log = (folder / "snakemake.log").read_text()
    assert "Trying to restart job" in log
    assert same_tables(folder, built) > 12


def test_a_failed_job_names_its_log(tmp_path):
    folder = copy_checkout(tmp_path / "cluster")
    profile = site_profile(folder, retries=0)
    large = {"suites": {"tiny": {"batches": {"validation": {"sequences": 10_000_000}}}}}
    (folder / "large.yaml").write_text(yaml.safe_dump(large))
    script = f"""
        snakemake --workflow-profile {profile} --configfile {TINY} large.yaml \
          -- results/tiny/data/validation.safetensors > snakemake.log 2>&1 || true
    """
    on_cluster(script, folder, minutes=10)
    log = (folder / "snakemake.log").read_text()
    assert "logs/tiny/fix_batches.log" in log
    assert "sequences of 32 need" in log


def test_revisions_of_a_hub_are_jobs_of_the_cluster(tmp_path):
    """Each job fetches, describes, probes and deletes one revision, with the same results."""
    steps = EvenGrid(powers_of_two=10, spacing=1000, last=143_000).revisions
    targets = [f"results/pythia-160m/kurtosis/step{step}.csv" for step in (4, 8)]
    clones = {name: copy_checkout(tmp_path / name) for name in ("cluster", "alone")}
    profile = site_profile(clones["cluster"])
    end = ["--configfile", "tests/config/pythia_tiny.yaml", "--", *targets]
    script = f"""
        snakemake --workflow-profile {profile} {" ".join(end)} > snakemake.log 2>&1 \\
          || {{ tail -n 60 snakemake.log; exit 1; }}
    """
    with TinyHub(pythia.models(steps), pythia.datasets()) as hub:
        environment = hub.environment(tmp_path / "home")
        on_cluster(script, clones["cluster"], 15, environment)
        alone = subprocess.run(
            [sys.executable, "-m", "snakemake", "--cores", "1", *end],
            cwd=clones["alone"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
    assert alone.returncode == 0, alone.stdout[-3000:] + alone.stderr[-3000:]
    log = (clones["cluster"] / "snakemake.log").read_text()
    assert re.search(r"^probe_revision +2$", log, re.MULTILINE)
    assert same_tables(clones["alone"], clones["cluster"]) == 4 * len(targets)
    assert not list(clones["cluster"].glob("results/*/unfinished/probe_revision/*"))
