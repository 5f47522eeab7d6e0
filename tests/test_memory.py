"""Jobs over several checkpoints keep one model in memory."""

import gc
import platform
import resource
import weakref
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models

from flatminima.device import keep_freed_memory
from flatminima.errors import UserError
from flatminima.mechanism import visits
from flatminima.model import (
    WEIGHTS_FILE,
    build_model,
    load_model,
    load_tensors,
    save_model,
    save_tensors,
)
from flatminima.text.tokens import write_tokens
from flatminima.tools import audit
from flatminima.tools.audit_options import AuditOptions
from tests.architectures import build
from tests.conftest import PROBE, TINY, TINY_VOCABULARY
from workflow_scripts import average_checkpoints, probe_deployed


@pytest.fixture
def folders(tmp_path):
    """Three checkpoints by step."""
    paths = {step: str(tmp_path / f"runs/step{step}") for step in (10, 20, 30)}
    for step, folder in paths.items():
        save_model(build_model(TINY, TINY_VOCABULARY, seed=step), Path(folder))
    return paths


@pytest.fixture
def validation(tiny_tokens, tmp_path):
    path = str(tmp_path / "validation.safetensors")
    write_tokens(path, tiny_tokens)
    return path


@pytest.fixture
def loads(monkeypatch):
    """Folders in the order in which they were loaded, each after the model before was freed."""
    loaded_folders = []
    alive = []

    def watched_load(folder, *args):
        gc.collect()
        assert all(reference() is None for reference in alive), f"two models at {folder}"
        model = load_model(folder, *args)
        alive.append(weakref.ref(model))
        loaded_folders.append(str(folder))
        return model

    for module in (visits, average_checkpoints, probe_deployed, audit):
        monkeypatch.setattr(module, "load_model", watched_load)
    return loaded_folders


def settings(**more):
    return {"device": "cpu", "batch_size": 4, "resamples": 20, "sequences": 4, **more}


def test_measurements_beyond_the_paper(folders, validation, loads):
    steps = visits.measure_each(lambda visit: visit.step, folders, validation, settings(), 1)
    assert steps == [10, 20, 30] and loads == list(folders.values())


def test_a_diverged_checkpoint_is_left_out(folders, validation, caplog):
    path = Path(folders[20], WEIGHTS_FILE)
    weights, metadata = load_tensors(path)
    name = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"
    weights[name][0, 0] = float("nan")
    save_tensors(path, weights, metadata)
    steps = visits.measure_each(lambda visit: visit.step, folders, validation, settings(), 1)
    assert steps == [10, 30]
    assert "step 20" in caplog.text


def test_a_family_without_linear_layers_is_refused(tmp_path, validation):
    save_model(build("gpt2"), tmp_path / "gpt2")
    with pytest.raises(UserError, match="not an \\[out, in\\] matrix"):
        visits.measure_each(
            lambda visit: None, {5: str(tmp_path / "gpt2")}, validation, settings(), 1
        )


def test_averages(folders, loads):
    model = average_checkpoints.average_model(list(folders.values()), [0.5, 0.25, 0.25], "cpu")
    name = "gpt_neox.embed_in.weight"
    means = [load_tensors(Path(folder, WEIGHTS_FILE))[0][name] for folder in folders.values()]
    expected = 0.5 * means[0].double() + 0.25 * means[1].double() + 0.25 * means[2].double()
    torch.testing.assert_close(model.state_dict()[name], expected.float())
    assert loads == list(folders.values())


def test_deployed_formats(folders, validation, loads, tmp_path, monkeypatch):
    monkeypatch.setattr(
        probe_deployed, "probe_deployed", lambda model, prober, step, *_, **__: pd.DataFrame([step])
    )
    table = str(tmp_path / "table.csv")
    probe_deployed.main(folders, validation, PROBE, 20, 1, "tiny", table)
    assert len(pd.read_csv(table)) == 3 and loads == list(folders.values())


def test_the_audit(folders, loads, tmp_path):
    vocabulary_words = [f"word{number}" for number in range(TINY_VOCABULARY - 1)]
    vocabulary = {word: index for index, word in enumerate([*vocabulary_words, "[UNK]"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    random = np.random.default_rng(0)
    text = "\n\n".join(" ".join(random.choice(vocabulary_words, 80)) for _ in range(20))
    (tmp_path / "text.txt").write_text(text)
    options = AuditOptions(
        str(tmp_path / "runs"),
        data=str(tmp_path / "text.txt"),
        tokenizer=str(tmp_path / "tokenizer.json"),
        out=str(tmp_path / "out"),
        sequences=8,
        length=16,
        group_size=16,
        resamples=20,
        device="cpu",
    )
    assert audit.audit(options) in (audit.PASSED, audit.LEFT_PLATEAU)
    assert loads == list(folders.values())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_freed_memory_is_used_again_without_page_faults():
    def page_faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def use_and_free():
        arrays = [torch.ones(5 * 2**20) for _ in range(5)]  # 20 MiB each
        del arrays

    keep_freed_memory()
    use_and_free()
    before = page_faults()
    for _ in range(5):
        use_and_free()
    pages = 5 * 5 * 20 * 2**20 / resource.getpagesize()
    assert page_faults() - before < pages / 2
