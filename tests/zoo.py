"""The zoo: a tiny random model of every causal language model family of transformers, audited.

``python -m tests.zoo`` (``make zoo``) writes docs/zoo.md. Each model is saved, loaded and
probed as the audit command does it, and its FP32, INT4 and INT8 losses are held against a
plain script: which weights are matrices, and which of their axes holds the inputs, is told by
module types, names and sizes; each is replaced by what the NumPy oracle makes of it; the model
is called as its own forward. The two share no code but transformers.
"""

import argparse
import contextlib
import datetime
import logging
import math
import multiprocessing
import platform
import re
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES
from transformers.pytorch_utils import Conv1D

from tests.oracles import log_softmax, quantize_matrix

PAGE = Path(__file__).parent.parent / "docs" / "zoo.md"
VOCABULARY = 96
HIDDEN = 32
INNER = 48
LENGTH = 24
GROUP = 16
CLOSE = 1e-5  # nats per token
MOST = 8_000_000  # parameters of a model that is still called tiny
SECONDS = 240  # that one family may take

# Sizes by the names that configurations give them; the first that matches counts.
SIZES = {
    r"tie_word_embeddings": False,
    r"is_decoder": True,
    r"(image|video|audio|bo[ia]|eo[ia]|vision_(start|end))_token_(id|index)": 90,
    r"forced_eos_token_id": None,
    r"(bos|eos|pad|sep|cls|decoder_start)_token_id": 0,
    r"(decoder_)?vocab_size(_per_layer_input)?": VOCABULARY,
    r"max_(seq_len|(position_embedding|source_position|target_position)s)": 64,
    r"n_positions|n_ctx|model_max_length|encoder_hash_byte_group_vocab": 64,
    r"(sliding_window|chunk|pronunciation_vocab|shape_vocab|mamba_chunk)(_size)?": 16,
    r"image_size|codebook_size|rel_extent": 32,
    r"num_kv_shared_layers": 0,
    r"(n|num_expert|topk)_group|(moe_)?n(um)?_shared_experts|moe_num_shared_experts": 1,
    r"num_nextn_predict_layers|first_k_dense_replace|num_dense_layers": 1,
    r"num_experts_per_tok(en)?|moe_top_?k|top_k_experts|moe_k": 2,
    r"(moe_num|num|num_local|n_routed)_experts|zero_expert_num": 4,
    r"(mamba_d|ssm)?_?state(_size)?|(mamba_dt|time_step)_rank|d_rel": 4,
    r"(laurel|adapter|gated_norm|loop_gate)_rank": 4,
    r"qk_(rope|nope)_head_dim|rotary_dim": 8,
    r"(?!mamba_|indexer_)\w*(head_dim|head_size|dim_head|lora_rank|lowrank)|d_head": 16,
    r"kv_channels|query_pre_attn_scalar|hidden_size_per_layer_input": 16,
    r"(?!mamba_|conf_|indexer_)\w*(_heads|n_head|query_groups)": 2,
    r"(num_(hidden_|(en|de)coder_)?|n_(in|out|recurrent)?(put)?_?|(en|de)coder_)layers?": 2,
    r"depth|num_blocks|num_layers_per_stack": 2,
    r"\w*(intermediate_size(_mlp)?|ffn_hidden_size|ffn_dim|feed_forward_size)": INNER,
    r"dim_ff|dff|n_inner|d_inner|mlp_dim": INNER,
    r"\w*(hidden_size(_global)?|embed(_proj)?_dim|embedding_size|emb_dim)": HIDDEN,
    r"d_model|n_embd|lru_width|num_filters|codebook_dim|adapter_(in|out)_dim": HIDDEN,
    r"vector_quantization_hidden_dimension": HIDDEN,
}
# What a family needs besides, or otherwise. A name that is no argument of its class is passed on.
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16}
ZAMBA = {
    "layers_block_type": ["mamba", "hybrid"],
    "attention_hidden_size": 2 * HIDDEN,
    "attention_head_dim": 32,
}
OVERRIDES: dict[str, dict] = {
    "dbrx": {"attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 1e4}},
    "bamba": MAMBA,
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "gemma4_assistant": {
        "text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    },
    "gemma4_unified": {
        "vision_config": {"mm_embed_dim": HIDDEN, "output_proj_dims": HIDDEN, "mm_posemb_size": 16}
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": MAMBA,
    "inkling2_loop_text": {"unpadded_vocab_size": VOCABULARY},
    "inkling2_text": {"unpadded_vocab_size": VOCABULARY},
    "jetmoe": {"kv_channels": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "reformer": {
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 8],
        "attn_layers": ["local", "local"],
        "local_attn_chunk_length": 8,
    },
    "mimo_v2_flash": {"num_attention_heads": 8},  # eight keys where attention is local
    "xlm": {"causal": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": ZAMBA,
    "zamba2": {**ZAMBA, "mamba_headdim": 8, "n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
    "dory": {"num_hidden_layers": 6},
    "dots3_note": {
        "text_config": {"per_layer_config": {}},
        "vision_config": {"per_layer_config": {}},
        "audio_config": {"adapter_input_size": HIDDEN},
    },
    "dots3_note_text": {"per_layer_config": {}},
}


# A tiny model


def small_config(kind: type, overrides: dict):
    """A small configuration of a class, its parts included."""
    try:
        default = kind()
    except Exception:  # noqa: BLE001, it takes arguments to make one
        default = None
    config_keys = {
        *getattr(kind, "__dataclass_fields__", ()),
        *(default.to_dict() if default else ()),
    }
    values = {
        name: next(size for pattern, size in SIZES.items() if re.fullmatch(pattern, name))
        for name in config_keys
        if any(re.fullmatch(pattern, name) for pattern in SIZES)
    }
    if "qk_rope_head_dim" in config_keys and "head_dim" in config_keys:
        values["head_dim"] = values["qk_rope_head_dim"]
    values |= overrides
    for name in getattr(kind, "sub_configs", {}):
        values.pop(name, None)
        if default is not None:
            part = type(getattr(default, name, None))
        else:
            part_kind = getattr(kind, "sub_configs_defaults", {}).get(name)
            part = (
                CONFIG_MAPPING[part_kind.model_type]
                if getattr(part_kind, "model_type", None)
                else None
            )
        if part not in (None, type(None)):
            values[name] = small_config(part, overrides.get(name, {}))
    return kind(**values)


def build(family: str) -> nn.Module:
    """A tiny model whose weights are drawn so that every product moves its logits."""
    config = small_config(CONFIG_MAPPING[family], OVERRIDES.get(family, {}))
    with contextlib.suppress(NotImplementedError, RuntimeError):
        with torch.device("meta"):
            count = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if count > MOST:
            raise ValueError(f"{count:,} parameters, so not tiny")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape) * 0.15)
            else:
                parameter.add_(torch.randn(parameter.shape) * 0.05)
    return model


# The plain script: which weights, along which axis, and what comes out

EXPERTS_IN = ("gate_up_proj", "gate_proj", "up_proj", "w1", "w3", "v1", "input_linear.weight")
EXPERTS_OUT = ("down_proj", "w2", "output_linear.weight")
# Stacks that sizes and names do not tell: (name, axis of the inputs in one matrix, matrices).
STACKS = {
    "dbrx": [("experts.mlp.w1", 1, 4), ("experts.mlp.v1", 1, 4), ("experts.mlp.w2", 0, 4)],
    "zamba": [("mamba.x_proj_weight", 1, 2), ("mamba.dt_proj_weight", 1, 2)],
    "recurrent_gemma": [("input_gate_weight", 0, 2), ("recurrent_gate_weight", 0, 2)],
}


def plain_selection(model: nn.Module, family: str) -> dict[str, tuple[int, int]]:
    """Parameter names of matrices, the axis of the inputs in one of them, and how many."""
    head = model.get_output_embeddings()
    axis_and_experts = {}
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        module = modules[name.rpartition(".")[0]]
        stacks = [(a, n) for end, a, n in STACKS.get(family, ()) if name.endswith(end)]
        if stacks:
            axis_and_experts[name] = stacks[0]
        elif isinstance(module, Conv1D) and name.endswith("weight"):
            axis_and_experts[name] = (0, 1)
        elif isinstance(module, nn.Linear) and name.endswith("weight") and module is not head:
            axis_and_experts[name] = (1, 1)
        elif parameter.ndim == 3 and not isinstance(module, nn.Conv1d):
            wide = list(parameter.shape[1:]).index(HIDDEN) if HIDDEN in parameter.shape[1:] else 0
            if name.endswith((*EXPERTS_IN, *EXPERTS_OUT)):
                axis = wide if name.endswith(EXPERTS_IN) else 1 - wide
                axis_and_experts[name] = (axis, len(parameter))
    return axis_and_experts


def plain_losses(folder: Path, family: str, tokens: np.ndarray) -> dict[str, list]:
    """Nats of each sequence under the model and under its two quantized copies."""
    quantizers = {"fp32": None, "int4": (4, "group", False, GROUP), "int8": (8, "channel", True, 0)}
    losses = {}
    for label, settings in quantizers.items():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        parameters = dict(model.named_parameters())
        for name, (axis, count) in plain_selection(model, family).items() if settings else ():
            weight = parameters[name].detach().numpy().copy()
            stack = weight.reshape(count, -1, weight.shape[-1])
            for number, matrix in enumerate(stack):
                values, _ = quantize_matrix(matrix if axis == 1 else matrix.T, *settings)
                stack[number] = values if axis == 1 else values.T
            parameters[name].data.copy_(torch.from_numpy(stack.reshape(weight.shape)))
        model.config.get_text_config(decoder=True).use_cache = False
        losses[label] = []
        for row in tokens.astype(np.int64):
            with torch.no_grad():
                logits = model(input_ids=torch.from_numpy(row[None])).logits[0].numpy()
            nll = [-log_softmax(logits[t])[row[t + 1]] for t in range(LENGTH - 1)]
            losses[label].append(math.fsum(nll) / (LENGTH - 1))
    return losses


# The audit's own way


def audited(folder: Path, tokens: np.ndarray, scratch: Path) -> tuple[dict[str, list], dict]:
    """The same losses by the loading and the probe of the audit command, and the coverage."""
    from flatminima.model import load_model
    from flatminima.scoring import Prober
    from flatminima.text.tokens import write_tokens
    from flatminima.tools.audit import probe_settings
    from flatminima.tools.audit_options import AuditOptions

    write_tokens(scratch / "validation.safetensors", tokens)
    options = AuditOptions(target=str(folder), group_size=GROUP, batch_size=2, device="cpu")
    prober = Prober(str(scratch / "validation.safetensors"), probe_settings(options), 1)
    scores = prober(load_model(folder), 1)
    losses = (scores["nll_nats"] / scores["scored"]).groupby(scores["quantizer"]).apply(list)
    names = {"fp32": "fp32", f"int4_g{GROUP}": "int4", "int8_channel": "int8"}
    coverage = prober.made_by["coverage"][f"int4_g{GROUP}"]
    return {names[name]: loss for name, loss in losses.items()}, coverage


def run_family(family: str) -> dict:
    """Build, audit and check one family: its verdict, the reason, and what was quantized."""
    from flatminima.errors import UserError, one_line

    record = {"family": family}
    # Four sequences of ids that no family keeps for something else.
    tokens = np.random.default_rng(0).integers(8, 88, (4, LENGTH), dtype=np.int32)

    def verdict(word: str, reason: object = "") -> dict:
        text = reason if isinstance(reason, str) else one_line(reason, 160)
        return record | {"verdict": word, "reason": text}

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        try:
            build(family).save_pretrained(folder)
        except Exception as error:  # noqa: BLE001, whatever a family's configuration raises
            return verdict("not built", error)
        refused = plain = None
        try:
            losses, covered = audited(folder, tokens, Path(place))
        except UserError as error:  # which is what the command prints as one line
            refused = re.sub(r"^(step 1: |/\S+: )+", "", one_line(error, 200))
            if "looks ahead" in refused:
                return verdict("refused", refused)
        except Exception as error:  # noqa: BLE001
            return verdict("traceback", error)
        try:
            plain = plain_losses(folder, family, tokens)
        except Exception as error:  # noqa: BLE001
            return verdict("refused", refused) if refused else verdict("wrong", error)
    if refused:
        return verdict("wrong", f"refused, but it runs: {refused}")
    record["share"] = covered["weights"] / covered["of"]
    record |= {key: covered[key] for key in ("left", "unread")}
    apart = {name: abs(np.subtract(losses[name], plain[name])).max() for name in plain}
    if max(apart.values()) > CLOSE:
        differences = ", ".join(f"{name} {value:.1e}" for name, value in apart.items())
        return verdict("wrong", f"{differences} nats apart")
    if abs(np.subtract(plain["int4"], plain["fp32"])).max() < 10 * CLOSE:
        return verdict("wrong", "INT4 changes nothing: nothing is shown")
    return verdict("measured")


# All of them


def quiet() -> None:
    """One thread, and nothing of what transformers has to say."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def guarded(family: str) -> dict:
    """``run_family`` in a process of its own, without its words, and not for ever."""
    quiet()
    signal.alarm(SECONDS)  # ends the process; its family is then missing
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stderr(nowhere):
        return run_family(family)


def run_all(families: list[str], jobs: int) -> list[dict]:
    """Results in the order of ``families``, some at a time."""
    results = []
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        started = [(family, pool.apply_async(guarded, (family,))) for family in families]
        for family, pending in started:
            try:
                result = pending.get(2 * SECONDS)
            except multiprocessing.TimeoutError:
                result = {
                    "family": family,
                    "verdict": "traceback",
                    "reason": f"longer than {SECONDS} s, or its process ended",
                }
            print(family, result["verdict"], result["reason"], flush=True)
            results.append(result)
    return results


VERDICTS = {
    "measured": "all three losses equal the plain script's",
    "refused": "one line, exit code 2",
    "wrong": "losses differ, or nothing is shown",
    "traceback": "an error that is no line",
    "not built": "no tiny model was made, so nothing was tried",
}


def page(results: list[dict]) -> str:
    """docs/zoo.md."""
    counts = {v: sum(r["verdict"] == v for r in results) for v in VERDICTS}
    total = len(results)
    good = counts["measured"] + counts["refused"]
    rows = "\n".join(map(_row, results))
    meanings = "\n".join(f"| {v} | {counts[v]} | {meaning} |" for v, meaning in VERDICTS.items())
    return f"""# The zoo

Every causal language model family of transformers as a tiny random model, loaded and probed \
as the audit command does it. Its FP32, INT4 and INT8 losses are held to {CLOSE:g} nats per \
token against a plain script that shares no code with it ([tests/zoo.py](../tests/zoo.py)). \
Written by `make zoo`; not edited by hand.

{datetime.date.today()}, Python {platform.python_version()}, torch {torch.__version__}, \
transformers {transformers.__version__}: {good} of {total} model types \
({100 * good / total:.1f} %) measured or refused for a stated reason.

| verdict | model types | meaning |
|---|---|---|
{meanings}

Shares are of these tiny models, whose embeddings weigh little; `left out` names the largest \
weights that stay as they are, with `*` for numbers (`vectors`: biases and norms) and in \
brackets those that are linear layers but were not read when the model ran.

| model type | class | weights quantized | left out | verdict |
|---|---|---|---|---|
{rows}
"""


def _row(result: dict) -> str:
    share = f"{100 * result['share']:.1f} %" if "share" in result else ""
    unread = result.get("unread", {})
    kinds = [name for name in result.get("left", {}) if name not in unread]
    left = [f"`{name.removesuffix('.weight')}`" for name in kinds[:4]]
    left += [f"{len(kinds) - 4} more"] if len(kinds) > 4 else []
    left += [f"({len(unread)} kinds not read, such as `{min(unread)}`)"] if unread else []
    reason = f": {result['reason']}" if result["reason"] else ""
    verdict = (result["verdict"] + reason).replace("|", "\\|")
    cells = [result["family"], FAMILIES[result["family"]], share, ", ".join(left), verdict]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    """Run the families that are named, or all and write the page; 1 where one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("families", nargs="*", help="model types; all of them where none is named")
    parser.add_argument("--jobs", type=int, default=2, help="families at a time")
    options = parser.parse_args(arguments)
    quiet()
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stderr(nowhere):
        run_family("llama")  # imports once for all processes what most of them need
    results = run_all(options.families or sorted(FAMILIES), options.jobs)
    if not options.families:
        PAGE.write_text(page(results), encoding="utf-8")
        print(f"wrote {PAGE}")
    return int(any(r["verdict"] in ("wrong", "traceback") for r in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
