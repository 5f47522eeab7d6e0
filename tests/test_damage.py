"""Damage is detected, said in one line that names the file, and leaves nothing that looks whole.

Every fault goes through the script of a rule, as Snakemake runs it.
"""

import logging
import resource
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from flatminima.errors import DamagedFile, UserError
from flatminima.files import DIGESTS_FILE, write_table
from flatminima.intervals import summarise
from flatminima.jobs import logged
from flatminima.kurtosis import kurtosis_table
from flatminima.model import WEIGHTS_FILE, build_model, save_model
from flatminima.text.tokens import read_tokens, write_tokens
from tests.conftest import PROBE, TINY
from tests.test_scripts import data, run_script  # noqa: F401
from tests.test_workspace import interrupted, outputs, run_fork, start, train_until  # noqa: F401
from tests.workflow import TINY as TINY_SUITE
from tests.workflow import copy_checkout, snakemake, tiny_checkout


def flip_a_bit(path: Path) -> None:
    """One bit of one weight: the file stays a valid safetensors file."""
    content = bytearray(path.read_bytes())
    content[-1000] ^= 4
    path.write_bytes(bytes(content))


def transpose(path: Path) -> None:
    tensors = load_file(path)
    name = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"
    save_file(tensors | {name: tensors[name].T.contiguous()}, path, metadata={"format": "pt"})


DAMAGE = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "a web page": (lambda path: path.write_text("<html>404 not found</html>"), "cannot be read"),
    "another model": (lambda path: save_file({"x": torch.zeros(2)}, path), "missing weights"),
    "transposed": (transpose, "[16, 64]"),
}


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    save_model(build_model(TINY, 300, seed=0), tmp_path / "step7", digests=True)
    return tmp_path / "step7"


def last_line(log: Path) -> str:
    """The one line of an error; the log has no traceback."""
    text = log.read_text()
    assert "Traceback" not in text
    line = text.rstrip().splitlines()[-1]
    assert line.startswith("Error: ")
    return line


def refused(script: str, folder: Path, output: tuple, **job) -> str:
    """Run a script that must fail and leave no output; returns what it says."""
    with pytest.raises(SystemExit) as stopped:
        run_script(script, folder, output={name: name for name in output}, **job)
    assert stopped.value.code == 1 and not any((folder / name).exists() for name in output)
    return last_line(folder / f"{script}.log")


def probe(data: Path, folder: Path, checkpoint: Path) -> str:  # noqa: F811
    """What the probe says of what it cannot measure."""
    return refused(
        "probe_checkpoints",
        folder,
        ("sequences", "provenance"),
        input={"validation": data / "validation.safetensors"},
        params={"folders": {7: str(checkpoint)}, "probe": PROBE},
    )


def test_a_damaged_checkpoint_or_configuration_is_named(data, tmp_path):  # noqa: F811
    for number, (damage, said) in enumerate(DAMAGE.values()):
        checkpoint = tmp_path / f"checkpoint{number}"
        save_model(build_model(TINY, 300, seed=0), checkpoint)
        damage(checkpoint / WEIGHTS_FILE)
        line = probe(data, tmp_path, checkpoint)
        assert str(checkpoint) in line and said in line
    for content in ("{", '{"model_type": "nonsense"}'):
        (checkpoint / "config.json").write_text(content)
        assert str(checkpoint) in probe(data, tmp_path, checkpoint)


def test_a_flipped_bit_between_writing_and_reading_is_found(data, tmp_path, checkpoint):  # noqa: F811
    """Nothing else would tell: the file is as valid as before. The digests are sha256sum's."""
    command = ["sha256sum", "--check", "--strict", DIGESTS_FILE]
    checked = subprocess.run(command, cwd=checkpoint, capture_output=True, check=True).stdout
    assert {*checked.splitlines()} == {b"config.json: OK", b"model.safetensors: OK"}
    path = checkpoint / WEIGHTS_FILE
    config = checkpoint / "config.json"
    text = config.read_text()
    damaged = "damaged or changed since it was written"
    config.write_text(text.replace('"layer_norm_eps": 1e-05', '"layer_norm_eps": 2e-05'))
    assert f"Error: {config}: {damaged}" in probe(data, tmp_path, checkpoint)
    config.write_text(text)
    flip_a_bit(path)
    load_file(path)
    assert f"Error: {path}: {damaged}" in probe(data, tmp_path, checkpoint)
    params = {"steps": [7], "tokens_per_step": 1, "layers": "blocks"}
    for script in ("describe_checkpoints", "measure_kurtosis"):
        outputs = ("table", "fingerprints")
        assert str(path) in refused(
            script, tmp_path, outputs, input={"weights": [str(path)]}, params=params
        )


# Training states


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_a_damaged_state_is_not_gone_on_from_and_named_by_whoever_needs_it(
    tmp_path,
    start,  # noqa: F811
    how,
    caplog,
    monkeypatch,  # noqa: F811
):
    """It would end in other numbers, or fail for ever."""
    folder = tmp_path / "damaged"
    uninterrupted = tmp_path / "whole"
    uninterrupted.mkdir()
    train_until(uninterrupted, 8, train=start["train"])
    interrupted(monkeypatch, 6, job=lambda: train_until(folder, 8, train=start["train"]))
    state = folder / "unfinished" / "state.safetensors"
    other = tmp_path / "state8.safetensors"
    if how == "flipped":
        flip_a_bit(state)
    else:
        state.write_bytes(state.read_bytes()[:-10])
    shutil.copyfile(state, other)
    caplog.set_level(logging.INFO, "flatminima")
    train_until(folder, 8, train=start["train"])
    assert "resuming from step" not in caplog.text
    assert outputs(folder) == outputs(uninterrupted)
    for job in (
        lambda: train_until(folder, 40, train=start["train"], state=str(other), begin=8),
        lambda: run_fork(tmp_path, start | {"state": str(other)}),
    ):
        with pytest.raises(DamagedFile, match=str(other)):
            job()
    assert not list(tmp_path.glob("f.*")) and not list(folder.glob("step16"))


# Tokens


def test_a_damaged_or_edited_token_file_is_named(data, checkpoint, tmp_path):  # noqa: F811
    path = tmp_path / "validation.safetensors"
    for name in ("validation.safetensors", "validation.json"):
        shutil.copy(data / name, tmp_path / name)
    tokens = read_tokens(path).copy()
    tokens[0, 0] ^= 1
    write_tokens(path, tokens)
    assert probe(tmp_path, tmp_path, checkpoint).startswith(f"Error: {path}: damaged or changed")
    (tmp_path / "validation.json").unlink()
    for damage in ("another model", "truncated"):
        DAMAGE[damage][0](path)
        with pytest.raises(DamagedFile, match=f"{path}: contains no tokens"):
            read_tokens(path)


def test_a_vocabulary_smaller_than_the_token_ids_is_named(data, tmp_path, start):  # noqa: F811
    """On a GPU it would end in an error of the device, on a CPU in an IndexError."""
    save_model(build_model(TINY, 200, seed=0), tmp_path / "step7")
    line = probe(data, tmp_path, tmp_path / "step7")
    assert line.startswith("Error: step 7: the vocabulary has 200 entries")
    big = str(tmp_path / "train.safetensors")
    write_tokens(big, np.full((32, 16), 64, dtype=np.int32))
    for job in (
        lambda: train_until(tmp_path, 8, train=big),
        lambda: run_fork(tmp_path, start | {"train": big}),
    ):
        with pytest.raises(UserError, match="64 entries"):
            job()


# Numbers


def test_no_kurtosis_is_made_up():
    with pytest.raises(UserError, match="step 7: the weights of b are all equal"):
        kurtosis_table(7, {"a": np.eye(2), "b": np.full((2, 2), 0.5)})


def test_a_perplexity_beyond_a_float_is_no_row():
    rows = [
        {
            "step": 7,
            "quantizer": q,
            "role": r,
            "sequence": s,
            "nll_nats": nll,
            "kl_nats": 0.0,
            "top1_changed": 0.0,
            "scored": 1,
        }
        for q, r, nll in (("fp32", "fp32", 3.0), ("int4", "low_bit", 800.0))
        for s in range(4)
    ]
    with pytest.raises(FloatingPointError, match="7 int4 .*no finite perplexity"):
        summarise(pd.DataFrame(rows), ["step"], resamples=20, seed=0)


# Columns of text, which are numbers to pandas where all of them is missing.
TEXT = {"commit", "update_phase", "note", "reason", "analogue", "files", "findings"}
# Links to a suite's files: the paper's own ledger has none.
TEXT |= {"suite_evidence"}
# Columns of statistics.csv for one kind of test or another, described in the documentation.
OF_A_KIND = {
    "duplicate_of",
    "interval_low",
    "interval_high",
    "dof",
    "p_value",
    "p_adjusted",
    "n_b",
    "mean_a",
    "sd_a",
    "mean_b",
    "sd_b",
    "difference",
    "cohens_d",
    "cliffs_delta",
    "effect_size",
    # Empty where a rule gave no alarm: the count of alarms beside it says so.
    "first_alarm_step",
    "warning_step",
    "lead_steps",
    "onset_step",
    "distance_to_previous",  # the first revision has none before it
}


@pytest.mark.workflow
def test_no_row_carries_nan_as_a_number_without_a_reason(tmp_path_factory):
    root = tiny_checkout(tmp_path_factory) / "results"
    for path in sorted(p for p in root.rglob("*.csv") if "tables" not in p.parts):
        table = pd.read_csv(path)
        reasons = [name for name in ("reason", "note") if name in table]
        explained = table[reasons].notna().any(axis=1)
        numbers = table.select_dtypes("number")
        for name in set(numbers) - TEXT - OF_A_KIND:
            assert (table[name].notna() | explained).all(), f"{path}: {name}"
        assert not np.isinf(numbers.to_numpy(dtype=float)).any(), path


# Disks


def test_a_quota_leaves_nothing_that_looks_finished(tmp_path):
    model = build_model({**TINY, "hidden_size": 64}, 300, seed=0)
    log = tmp_path / "job.log"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for write in (
        lambda: write_table(tmp_path / "t.csv", pd.DataFrame({"a": range(100_000)})),
        lambda: save_model(model, tmp_path / "step7"),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        try:
            with pytest.raises(SystemExit), logged(log):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "File too large" in last_line(log)
    assert list(tmp_path.iterdir()) == [log]


@pytest.mark.workflow
def test_a_disk_that_is_full_in_the_middle_of_a_run_or_read_only(tmp_path_factory, tmp_path):
    """With room again, the same command ends with the same bytes."""
    expected = outputs(tiny_checkout(tmp_path_factory) / "results")
    folder = copy_checkout(tmp_path / "checkout")
    results = folder / "results"
    command = ("--cores", "2", "--configfile", TINY_SUITE)
    results.mkdir()

    def mount(options: str) -> int:
        disk = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(results)]
        return subprocess.run(disk, capture_output=True).returncode

    if not shutil.which("mount") or mount("size=800k"):
        pytest.skip("no right to mount a disk")
    try:
        for fault in ("No space left on device", "", "Read-only file system"):
            target = "results/paper/claims.md" if "Read" in fault else "results/tiny/suite.csv"
            run = snakemake(target, *command, folder=folder)
            assert bool(run.returncode) == bool(fault) and fault in run.stdout, run.stdout[-5000:]
            written = outputs(results)
            complete_files = [name for name in written if not name.startswith("tiny/unfinished/")]
            assert (
                complete_files
                and [name for name in complete_files if written[name] != expected[name]] == []
            )
            assert not mount("remount,size=200m" if fault else "remount,ro")
    finally:
        subprocess.run(["umount", "--lazy", str(results)], check=True)
