"""Averages of checkpoints, against arithmetic and against the recursion they stand for."""

import numpy as np
import pandas as pd
import pytest
import torch
from flatminima.forks.averaging import average_model

from flatminima.model import build_model, load_model, save_model
from flatminima.text.tokens import write_tokens
from tests.conftest import TINY, TINY_VOCABULARY
from tests.test_workspace import PROBE
from workflow_scripts import average_checkpoints


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("averages")
    for seed in range(3):
        save_model(build_model(TINY, TINY_VOCABULARY, seed), folder / f"step{seed}")
    return [str(folder / f"step{seed}") for seed in range(3)]


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def test_the_average_is_the_weighted_mean_of_the_weights(folders):
    shares = [0.2, 0.3, 0.5]
    models = [weights(load_model(folder)) for folder in folders]
    found = weights(average_model(folders, shares))
    expected = sum(share * w for share, w in zip(shares, models, strict=True))
    torch.testing.assert_close(found, expected, rtol=1.2e-7, atol=0)  # half a unit of float32
    assert torch.equal(weights(average_model(folders[:1], [1.0])), models[0])


def test_checkpoints_of_another_shape_are_named(folders, tmp_path):
    save_model(build_model({**TINY, "num_layers": 1}, TINY_VOCABULARY, 0), tmp_path / "other")
    with pytest.raises(ValueError, match="other: its weights are not those of"):
        average_model([folders[0], str(tmp_path / "other")], [0.5, 0.5])


def test_the_script_probes_the_average(folders, tmp_path):
    tokens = np.random.default_rng(0).integers(0, TINY_VOCABULARY, (6, 16)).astype(np.int32)
    write_tokens(tmp_path / "validation.safetensors", tokens)
    probe = {**PROBE, "resamples": 20}
    for name, definition, used in (
        ("early", {"kind": "early_stop"}, [0]),
        ("lawa", {"kind": "average", "window": 3}, [0, 1, 2]),
    ):
        average_checkpoints.main(
            suite="tiny", name=name, definition=definition, folders=[folders[n] for n in used],
            steps=[10 * n for n in used], validation=str(tmp_path / "validation.safetensors"),
            probe=probe, threads=1, code="abc", table=str(tmp_path / f"{name}.csv"),
            sequences=str(tmp_path / f"{name}.parquet"),
            provenance=str(tmp_path / f"{name}.json"),
        )  # fmt: skip
    table = pd.read_csv(tmp_path / "lawa.csv")
    assert list(table["role"]) == ["fp32", "low_bit", "high_bit"]
    assert set(table["step"]) == {20} and set(table["schedule"]) == {"lawa"}
    early = pd.read_csv(tmp_path / "early.csv")
    assert early.loc[0, "nll_nats_per_token"] != table.loc[0, "nll_nats_per_token"]
