"""Checkpoints that stay in their files are scored as those in memory are, to the bit."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flatminima import evaluation, probing
from flatminima.checkpoints import WEIGHTS_FILE, load_model, save_model
from flatminima.errors import DamagedFile, UserError
from flatminima.evaluation import score
from flatminima.logits import next_token_logits
from flatminima.quantizers import QuantizerSpec, probe_weights
from flatminima.streaming import memory, opening, scoring, stored
from flatminima.streaming.opening import open_model
from flatminima.streaming.scoring import score_streamed
from flatminima.streaming.stored import CannotStream, StoredModel
from flatminima.text.tokens import write_tokens
from tests.architectures import CONFIGS, build

LOW = {"bits": 4, "granularity": "group", "symmetric": False, "group_size": 8}
HIGH = {"bits": 8, "granularity": "channel", "symmetric": True}
SPECS = {"low": QuantizerSpec(**LOW), "high": QuantizerSpec(**HIGH)}
HEAD = {"head": QuantizerSpec(**LOW, layers="blocks+head")}
STREAMED = [family for family in CONFIGS if family != "jetmoe"]  # no quantizer knows its experts
SETTINGS = {
    "quantizers": {"low": LOW, "high": HIGH}, "roles": {"low": "low_bit", "high": "high_bit"},
    "batch_size": 4, "device": "cpu",
}  # fmt: skip


def whole_and_streamed(folder, tokens, specs, batch_size=2):
    model = load_model(folder)
    variants = {name: probe_weights(model, spec) for name, spec in specs.items()}
    whole = score(model, tokens, variants, batch_size=batch_size)
    return whole, score_streamed(StoredModel(folder), tokens, specs, batch_size=batch_size)


@pytest.fixture
def checkpoint(tmp_path, tiny_model):
    save_model(tiny_model, tmp_path / "step0")
    return tmp_path / "step0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", STREAMED)
def test_every_family_gets_the_same_bits(tmp_path, family, dtype):
    """In shards, tied or not, experts merged or not; the last batch is a smaller one."""
    build(family).to(dtype).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = np.random.default_rng(0).integers(0, 64, (5, 16)).astype(np.int32)
    whole, streamed = whole_and_streamed(tmp_path, tokens, SPECS)
    assert whole == streamed
    assert len({tuple(record.nll_nats) for record in streamed.values()}) == 3


def test_a_tied_head_is_the_embedding(tmp_path):
    build("gpt_neox", tie_word_embeddings=True).save_pretrained(tmp_path)
    model = StoredModel(tmp_path)
    with model.loaded(model.names_under(model.model.get_input_embeddings())):
        head = model.model.get_output_embeddings().weight
        assert head is model.model.get_input_embeddings().weight and not head.is_meta
    whole, streamed = whole_and_streamed(tmp_path, np.arange(20, dtype=np.int32)[None], SPECS)
    assert whole == streamed


def test_a_model_of_wider_matrices_gets_the_same_bits(tmp_path):
    """Products large enough for the blocked kernels of the matrix library."""
    from workflow_scripts.bench.models import fresh_model

    save_model(fresh_model("31m", vocabulary=512, max_length=64).half(), tmp_path / "step0")
    tokens = np.random.default_rng(0).integers(0, 512, (3, 64)).astype(np.int32)
    specs = {"low": QuantizerSpec(4, "group", symmetric=False, group_size=128)}
    whole, streamed = whole_and_streamed(tmp_path / "step0", tokens, specs)
    assert whole == streamed


@pytest.mark.parametrize("specs", [SPECS, HEAD])
def test_logits_in_pieces_and_a_quantized_head(checkpoint, tiny_tokens, specs, monkeypatch):
    for module in (evaluation, scoring):
        monkeypatch.setattr(
            module, "next_token_logits", lambda *given: next_token_logits(*given, at_once=5 * 64)
        )
    whole, streamed = whole_and_streamed(checkpoint, tiny_tokens, specs, batch_size=4)
    assert whole == streamed


def test_what_changes_logits_behind_the_head_is_kept(tmp_path):
    """Granite divides its logits by a number of its configuration."""
    from transformers import GraniteConfig, GraniteForCausalLM

    config = GraniteConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, logits_scaling=4.0,
    )  # fmt: skip
    torch.manual_seed(0)
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    whole, streamed = whole_and_streamed(tmp_path, np.arange(20, dtype=np.int32)[None], SPECS)
    assert whole == streamed


def test_never_more_than_a_layer_is_in_memory(checkpoint, tiny_tokens, monkeypatch):
    model, most, read = StoredModel(checkpoint), 0, []
    layer = scoring.decoder_layers(model.model)[0]
    of_layer, of_head = sum(p.numel() for p in layer.parameters()), 64 * 16
    take = model._take

    def watched(name):
        nonlocal most
        take(name)
        read.append(name)
        most = max(most, sum(p.numel() for p in model.model.parameters() if not p.is_meta))

    monkeypatch.setattr(model, "_take", watched)
    score_streamed(model, tiny_tokens, SPECS, batch_size=2)
    assert most == max(of_layer, 2 * of_head + 2 * 16)
    assert all(p.is_meta for p in model.model.parameters())
    inside = [name for name in read if ".layers." in name]
    assert len(inside) == len(set(inside)) > 0  # once for all batches and precisions


def run_again(layer):
    layer(torch.zeros(1, 1, 16))


def test_a_model_that_does_more_than_run_its_layers_is_not_streamed(
    checkpoint, tmp_path, tiny_tokens, monkeypatch
):
    skeleton = stored.skeleton

    def twice(folder):
        model = skeleton(folder)
        last = model.base_model.layers[-1]
        model.base_model.register_forward_hook(lambda *_: run_again(last))
        return model

    monkeypatch.setattr(stored, "skeleton", twice)
    with pytest.raises(CannotStream, match="GPTNeoXForCausalLM does more"):
        score_streamed(StoredModel(checkpoint), tiny_tokens, SPECS, batch_size=2)
    file = tmp_path / "validation.safetensors"
    write_tokens(file, tiny_tokens)
    with pytest.raises(UserError, match="step 7: probe.stream true: GPTNeoX"):
        prober = probing.Prober(str(file), SETTINGS | {"stream": True}, threads=1)
        prober(prober.open(checkpoint), 7)
    monkeypatch.setattr(opening, "available_bytes", lambda device: 1000)
    prober = probing.Prober(str(file), SETTINGS, threads=1)
    opened = prober.open(checkpoint)
    assert isinstance(opened, StoredModel)
    assert prober(opened, 7).equals(prober(load_model(checkpoint), 7))


@pytest.mark.parametrize(
    ("stream", "available", "streams"),
    [("auto", 2**40, False), ("auto", 1000, True), (True, 2**40, True), (False, 1000, False)],
)
def test_what_is_streamed(checkpoint, monkeypatch, stream, available, streams):
    monkeypatch.setattr(opening, "available_bytes", lambda device: available)
    assert isinstance(open_model(checkpoint, stream=stream), StoredModel) is streams


def test_a_prober_finds_the_same_either_way(checkpoint, tmp_path, tiny_tokens):
    write_tokens(tmp_path / "validation.safetensors", tiny_tokens)
    tables, made_by = [], []
    for stream in (False, True):
        settings = SETTINGS | {"stream": stream}
        prober = probing.Prober(str(tmp_path / "validation.safetensors"), settings, threads=1)
        tables.append(prober(prober.open(checkpoint), 3))
        made_by.append(prober.made_by["coverage"])
    assert tables[0].equals(tables[1]) and made_by[0] == made_by[1]


def _changed(checkpoint, change):
    weights = load_file(checkpoint / WEIGHTS_FILE)
    change(weights)
    save_file(weights, checkpoint / WEIGHTS_FILE, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.__setitem__(min(w), w[min(w)].fill_(float("nan"))),
        lambda w: w.__setitem__("gpt_neox.embed_in.weight", torch.zeros(3, 16)),
        lambda w: w.pop("gpt_neox.layers.1.mlp.dense_h_to_4h.weight"),
        lambda w: w.__setitem__("gpt_neox.another", torch.zeros(2)),
    ],
    ids=["not finite", "another shape", "missing", "unexpected"],
)
def test_damage_is_said_as_when_the_whole_model_is_loaded(
    checkpoint, tiny_tokens, monkeypatch, change
):
    _changed(checkpoint, change)
    with pytest.raises(DamagedFile) as expected:
        load_model(checkpoint)
    monkeypatch.setattr(opening, "available_bytes", lambda device: 1000)
    with pytest.raises(DamagedFile) as found:
        score_streamed(open_model(checkpoint), tiny_tokens, SPECS, batch_size=2)
    assert str(found.value) == str(expected.value)


def test_a_truncated_file_is_named(checkpoint):
    file = checkpoint / WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DamagedFile, match="step0"):
        open_model(checkpoint, stream=True)


def test_legacy_buffers_are_left_out(checkpoint, tiny_tokens):
    mask = torch.ones(1, 1, 16, 16)
    _changed(checkpoint, lambda w: w.__setitem__("gpt_neox.layers.0.attention.bias", mask))
    whole, streamed = whole_and_streamed(checkpoint, tiny_tokens, SPECS)
    assert whole == streamed


def test_what_is_left_of_memory(tmp_path):
    """The smallest limit above a process counts."""
    root, of = tmp_path / "cgroup", tmp_path / "self"
    job = root / "slurm" / "job"
    job.mkdir(parents=True)
    of.write_text("0::/slurm/job\n")
    for folder, limit, used in ((job, "max", 10), (job.parent, "1000", 400), (root, "900", 100)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    assert memory.left_of_cgroup(root, of) == 600
    assert memory.left_of_cgroup(tmp_path / "none", of) >= 2**60
    assert 0 < memory.available_bytes("cpu") < 2**50
