"""Damage is detected, said in one line that names the file, and leaves nothing that looks whole.

Every fault goes through the script of a rule, as Snakemake runs it.
"""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from flatminima.errors import DamagedFile, UserError
from flatminima.files import DIGESTS_FILE, check_digest, write_digests
from flatminima.intervals import summarise
from flatminima.jobs import logged
from flatminima.kurtosis import kurtosis_table
from flatminima.model import WEIGHTS_FILE, build_model, load_model, save_model
from flatminima.text.tokens import check_ids, read_tokens, write_tokens
from tests.test_scripts import PROBE, SHAPE, checkpoints, data, run_script  # noqa: F401
from tests.test_workspace import run_fork, start, train_until  # noqa: F401
from tests.workflow import ROOT, TINY, copy_checkout, snakemake, tiny_checkout

MATRIX = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"


def change_tensor(path: Path, change) -> None:
    tensors = load_file(path)
    tensors[MATRIX] = change(tensors[MATRIX].clone())
    save_file(tensors, path, metadata={"format": "pt"})


def flip_a_bit(path: Path, at: int = -1000) -> None:
    """One bit of one weight: the file stays a valid safetensors file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(bytes(content))


DAMAGE = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "a web page": (lambda path: path.write_text("<html>404 not found</html>"), "cannot be read"),
    "another model": (lambda path: save_file({"x": torch.zeros(2)}, path), "missing weights"),
    "transposed": (lambda path: change_tensor(path, lambda w: w.T.contiguous()), "[16, 64]"),
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    save_model(build_model(SHAPE, 300, seed=0), tmp_path / "step7")
    return tmp_path / "step7"


def probe(data: Path, folder: Path, checkpoint: Path) -> str:  # noqa: F811
    """Run the probe's script; it must fail and leave nothing. Returns its log."""
    with pytest.raises(SystemExit) as stopped:
        run_script(
            "probe_checkpoints", folder,
            input={"validation": str(data / "validation.safetensors")},
            output={name: str(folder / name) for name in ("sequences", "provenance")},
            params={"folders": {7: str(checkpoint)}, "probe": PROBE, "code": "abc"},
        )  # fmt: skip
    assert stopped.value.code == 1
    assert not [name for name in ("sequences", "provenance") if (folder / name).exists()]
    return (folder / "probe_checkpoints.log").read_text()


def last_line(log: str) -> str:
    """The one line of an error; the log has no traceback."""
    assert "Traceback" not in log
    line = log.rstrip().splitlines()[-1]
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_named(data, tmp_path, checkpoint, kind):  # noqa: F811
    damage, said = DAMAGE[kind]
    damage(checkpoint / WEIGHTS_FILE)
    line = last_line(probe(data, tmp_path, checkpoint))
    assert str(checkpoint) in line and said in line


@pytest.mark.parametrize("content", ["{", '{"model_type": "nonsense"}'])
def test_a_damaged_configuration_is_named(data, tmp_path, checkpoint, content):  # noqa: F811
    (checkpoint / "config.json").write_text(content)
    assert str(checkpoint) in last_line(probe(data, tmp_path, checkpoint))


@pytest.mark.parametrize("file", [WEIGHTS_FILE, "config.json"])
def test_a_flipped_bit_between_writing_and_reading_is_found(data, tmp_path, checkpoint, file):  # noqa: F811
    """Nothing else would tell: the file is as valid as before."""
    model = load_model(checkpoint)
    save_model(model, checkpoint, digests=True)
    path = checkpoint / file
    if file == WEIGHTS_FILE:
        flip_a_bit(path)
        load_file(path)
    else:
        text = path.read_text()
        path.write_text(text.replace('"layer_norm_eps": 1e-05', '"layer_norm_eps": 2e-05'))
        assert path.read_text() != text
    line = last_line(probe(data, tmp_path, checkpoint))
    assert line.startswith(f"Error: {path}: damaged or changed since it was written")
    for script, output in (("describe_checkpoints", "r.csv"), ("measure_kurtosis", "k.csv")):
        if file == "config.json":
            continue
        with pytest.raises(SystemExit):
            run_script(
                script, tmp_path,
                input={"weights": [str(path)]},
                output={"table": str(tmp_path / output), "fingerprints": str(tmp_path / "f")},
                params={"steps": [7], "tokens_per_step": 1, "layers": "blocks", "code": "abc"}
                | ({"revisions": ["step7"]} if script == "describe_checkpoints" else {}),
            )  # fmt: skip
        assert str(path) in last_line((tmp_path / f"{script}.log").read_text())
        assert not (tmp_path / output).exists()


def test_digests_are_those_of_sha256sum(checkpoint):
    write_digests(checkpoint, ("config.json", WEIGHTS_FILE))
    run = subprocess.run(
        ["sha256sum", "--check", "--strict", DIGESTS_FILE], cwd=checkpoint, capture_output=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [b"config.json: OK", b"model.safetensors: OK"]
    with pytest.raises(DamagedFile):
        flip_a_bit(checkpoint / WEIGHTS_FILE)
        check_digest(checkpoint / WEIGHTS_FILE)


# Training states


@pytest.mark.parametrize("how", ["flipped", "truncated", "header"])
def test_a_damaged_state_of_an_unfinished_job_is_not_gone_on_from(tmp_path, start, how, capsys):  # noqa: F811
    """It would end in other numbers, or fail for ever."""
    for name in ("whole", "damaged"):
        (tmp_path / name).mkdir()
    train_until(tmp_path / "whole", 8, train=start["train"])
    folder = tmp_path / "damaged"
    state = folder / "unfinished" / "state.safetensors"
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 6)
        train_until(folder, 8, train=start["train"])
    content = state.read_bytes()
    at = content.index(b'step\\":') if how == "header" else len(content) - 1000
    changed = bytearray(content)
    changed[at + 9] ^= 1  # in the header, the last bit of the step's first digit
    state.write_bytes({"truncated": content[:-10]}.get(how, bytes(changed)))
    train_until(folder, 8, train=start["train"])
    assert "going on from step" not in capsys.readouterr().err
    files = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert all((tmp_path / "whole" / name).read_bytes() == made for name, made in files.items())


def interrupt_at(patch: pytest.MonkeyPatch, step: int) -> None:
    from flatminima.training.workspace import Workspace

    save = Workspace.save

    def stop(self, model, optimizer, at, losses):
        save(self, model, optimizer, at, losses)
        if at == step:
            raise KeyboardInterrupt

    patch.setattr(Workspace, "save", stop)


def test_a_damaged_state_that_a_job_starts_from_is_named(tmp_path, start):  # noqa: F811
    state = shutil.copy(start["state"], tmp_path / "state8.safetensors")
    flip_a_bit(Path(state))
    with pytest.raises(DamagedFile, match=f"{state}: damaged training state"):
        train_until(tmp_path, 40, train=start["train"], state=str(state), begin=8)
    with pytest.raises(DamagedFile, match=f"{state}: damaged training state"):
        run_fork(tmp_path, start | {"state": str(state)})
    assert not list(tmp_path.glob("f.*")) and not list(tmp_path.glob("step*"))


# Tokens


def test_a_token_file_edited_after_hashing_is_named(data, checkpoints, tmp_path):  # noqa: F811
    for name in ("validation.safetensors", "validation.json"):
        shutil.copy(data / name, tmp_path / name)
    read_tokens(tmp_path / "validation.safetensors")
    tokens = read_tokens(tmp_path / "validation.safetensors").copy()
    tokens[0, 0] ^= 1
    write_tokens(tmp_path / "validation.safetensors", tokens)
    line = last_line(probe(tmp_path, tmp_path, Path(checkpoints[2])))
    assert line.startswith(f"Error: {tmp_path}/validation.safetensors: damaged or edited")


@pytest.mark.parametrize("damage", ["truncated", "another model"])
def test_a_damaged_token_file_is_named(tmp_path, damage):
    path = tmp_path / "train.safetensors"
    write_tokens(path, np.arange(100, dtype=np.int32).reshape(10, 10))
    DAMAGE[damage][0](path)
    with pytest.raises(DamagedFile, match=f"{path}: holds no tokens"):
        read_tokens(path)


def test_a_vocabulary_smaller_than_the_token_ids_is_named(data, tmp_path, start):  # noqa: F811
    """On a GPU it would end in an error of the device, on a CPU in an IndexError."""
    save_model(build_model(SHAPE, 200, seed=0), tmp_path / "step7")
    line = last_line(probe(data, tmp_path, tmp_path / "step7"))
    assert line.startswith("Error: step 7: the vocabulary has 200 entries; the tokens hold id 2")
    big = str(tmp_path / "train.safetensors")
    write_tokens(big, np.full((32, 16), 64, dtype=np.int32))
    with pytest.raises(UserError, match="64 entries; the tokens hold id 64"):
        train_until(tmp_path, 8, train=big)
    with pytest.raises(UserError, match="64 entries; the tokens hold id 64"):
        run_fork(tmp_path, start | {"train": big})
    check_ids(np.array([[63]]), 64, whose="a vocabulary")


# Numbers


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "are not all finite"),
        (np.full((2, 2), 0.5), "are all equal"),
    ],
)
def test_no_kurtosis_is_made_up(weights, said):
    with pytest.raises(UserError, match=f"step 7: the weights of b {said}"):
        kurtosis_table(7, {"a": np.eye(2), "b": weights})


def test_a_perplexity_beyond_a_float_is_no_row():
    rows = [
        {"step": 7, "quantizer": q, "role": r, "sequence": s, "nll_nats": nll, "kl_nats": 0.0,
         "top1_changed": 0.0, "scored": 1}
        for q, r, nll in (("fp32", "fp32", 3.0), ("int4", "low_bit", 800.0))
        for s in range(4)
    ]  # fmt: skip
    with pytest.raises(FloatingPointError, match="7 int4 .*no finite perplexity"):
        summarise(pd.DataFrame(rows), ["step"], resamples=20, seed=0)


# Text may be missing, and so may what a row is not about; a number has a reason beside it.
TEXT = {"commit", "update_phase", "family", "note", "reason", "paper", "measured", "analogue",
        "files", "findings"}  # fmt: skip
# Columns of statistics.csv for one kind of test or another, described in the documentation.
OF_A_KIND = {
    "duplicate_of", "interval_low", "interval_high", "dof", "p_value", "p_adjusted", "n_b",
    "mean_a", "sd_a", "mean_b", "sd_b", "difference", "cohens_d", "cliffs_delta", "effect_size",
    # Empty where a rule gave no alarm: the count of alarms beside it says so.
    "first_alarm_step", "warning_step", "lead_steps", "onset_step",
    "distance_to_previous",  # the first revision has none before it
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.workflow
def test_no_row_carries_nan_as_a_number_without_a_reason(tmp_path_factory):
    root = tiny_checkout(tmp_path_factory) / "results"
    for path in sorted(p for p in root.rglob("*.csv") if "tables" not in p.parts):
        table = pd.read_csv(path)
        reasons = [name for name in ("reason", "note") if name in table]
        explained = table[reasons].notna().any(axis=1)
        for name in set(table) - TEXT - OF_A_KIND:
            assert (table[name].notna() | explained).all(), f"{path}: {name}"
        numbers = table.select_dtypes("number")
        assert not np.isinf(numbers.to_numpy(dtype=float)).any(), path


# Disks


def limited(size: int, folder: Path, code: str) -> subprocess.CompletedProcess:
    """Run ``code`` where no file may grow beyond ``size`` bytes: a quota of one file."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT / "workflow_scripts")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )  # fmt: skip


WRITERS = {
    "table": "files.write_table('t.csv', pandas.DataFrame({'a': range(100000)}))",
    "checkpoint": "model.save_model(model.build_model("
                  "dict(hidden_size=64, num_layers=2, num_heads=2, max_length=16), 300, 0),"
                  " pathlib.Path('step7'))",
}  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS)
def test_a_quota_leaves_nothing_that_looks_finished(tmp_path, writer):
    code = (
        "import pandas, pathlib\n"
        "from flatminima import files, jobs, model\n"
        f"with jobs.logged('job.log'):\n    {WRITERS[writer]}\n"
    )
    run = limited(20_000, tmp_path, code)
    assert run.returncode == 1, run.stderr
    line = last_line(run.stderr)
    assert "File too large" in line
    assert [path.name for path in tmp_path.iterdir()] == ["job.log"]


def mounted(folder: Path, options: str) -> bool:
    """Mount a small file system of memory; whether this user may."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return (
        shutil.which("mount") is not None
        and subprocess.run(command, capture_output=True).returncode == 0
    )


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 300 kB; skipped by name where none can be mounted."""
    disk = tmp_path / "disk"
    if not mounted(disk, "size=300k"):
        pytest.skip("no right to mount a small disk; the quota tests stand for it")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_is_said_and_leaves_no_output(small_disk, tmp_path, start):  # noqa: F811
    for path in small_disk.parent.glob("job.log"):
        path.unlink()
    with pytest.raises(SystemExit), logged(tmp_path / "job.log"):
        train_until(small_disk, 40, train=start["train"])
    assert "No space left on device" in last_line((tmp_path / "job.log").read_text())
    left = [path.relative_to(small_disk).parts for path in small_disk.rglob("*") if path.is_file()]
    assert left and all(parts[0] == "unfinished" for parts in left)
    assert not [parts for parts in left if parts[-1].endswith(".tmp")]
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    train_until(small_disk, 40, train=start["train"])
    (tmp_path / "whole").mkdir()
    train_until(tmp_path / "whole", 40, train=start["train"])
    for path in (p for p in small_disk.rglob("*") if p.is_file()):
        assert (tmp_path / "whole" / path.relative_to(small_disk)).read_bytes() == path.read_bytes()


@pytest.mark.slow
@pytest.mark.workflow
def test_a_disk_that_is_full_in_the_middle_of_a_run(tmp_path_factory, tmp_path):
    """With room again, the same command ends with the same bytes."""
    from tests.test_kills import assert_same, results

    expected = results(tiny_checkout(tmp_path_factory))
    folder = copy_checkout(tmp_path / "checkout")
    if not mounted(folder / "results", "size=600k"):
        pytest.skip("no right to mount a small disk; the quota tests stand for it")
    try:
        run = snakemake("--cores", "2", "--configfile", TINY, folder=folder)
        assert run.returncode != 0
        assert "No space left on device" in run.stdout
        written = results(folder)
        whole = {name for name in written if not name.startswith("tiny/unfinished/")}
        assert [name for name in whole if written[name] != expected[name]] == []
        subprocess.run(["mount", "-o", "remount,size=200m", str(folder / "results")], check=True)
        run = snakemake("--cores", "2", "--configfile", TINY, folder=folder)
        assert run.returncode == 0, run.stdout[-5000:]
        assert_same(results(folder), expected)
    finally:
        subprocess.run(["umount", "--lazy", str(folder / "results")], check=True)


@pytest.mark.workflow
def test_read_only_results_are_said(tmp_path_factory, tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    if not mounted(folder / "results", "size=1m"):
        pytest.skip("no right to mount a read-only disk")
    try:
        subprocess.run(["mount", "-o", "remount,ro", str(folder / "results")], check=True)
        run = snakemake("results/paper/claims.md", "--cores", "1", folder=folder)
        assert run.returncode != 0
        assert "Read-only file system" in run.stdout
        assert list((folder / "results").rglob("*")) == []
    finally:
        subprocess.run(["umount", "--lazy", str(folder / "results")], check=True)
