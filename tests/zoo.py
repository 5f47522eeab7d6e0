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
VOCABULARY, HIDDEN, INNER, LENGTH, GROUP = 96, 32, 48, 24, 16
CLOSE = 1e-5  # nats per token
MOST = 8_000_000  # parameters of a model that is still called tiny
SECONDS = 240  # that one family may take
SAMPLE = (
    "gpt_neox", "llama", "gpt2", "opt", "bloom", "mixtral", "qwen2_moe", "mamba",
    "recurrent_gemma", "falcon", "gemma2", "xglm", "jetmoe", "deepseek_v3", "dbrx",
    "longcat_flash",  # experts that no token reaches in one layer
    "deepseek_v4",  # a table of integers among its weights
)  # fmt: skip

# Sizes by the names that configurations give them; a name that a configuration lacks is skipped.
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "emb_dim",
                     "word_embed_proj_dim", "lru_width", "attention_hidden_size",
                     "input_embedding_size", "output_embedding_size", "out_hidden_size",
                     "num_filters", "encoder_hidden_size", "cross_attention_hidden_size",
                     "hidden_size_global", "embed_dim", "backbone_hidden_size",
                     "router_hidden_size", "pronunciation_embed_dim", "shape_embed_dim",
                     "ple_embed_dim", "output_dim", "hidden_dim", "codebook_dim",
                     "vector_quantization_hidden_dimension", "adapter_in_dim",
                     "adapter_out_dim"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "decoder_ffn_dim", "encoder_ffn_dim",
                     "ffn_dim", "n_inner", "moe_intermediate_size", "expert_ffn_hidden_size",
                     "shared_expert_intermediate_size", "dense_intermediate_size", "dim_ff", "dff",
                     "shared_intermediate_size", "feed_forward_size", "d_inner", "mlp_dim",
                     "moe_shared_expert_intermediate_size", "intermediate_size_mlp",
                     "shared_experts_intermediate_size"), INNER),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers",
                     "encoder_layers", "num_encoder_layers", "num_decoder_layers", "depth",
                     "num_blocks", "num_layers_per_stack", "num_local_layers", "n_input_layers",
                     "n_recurrent_layers", "n_output_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads",
                     "decoder_attention_heads", "encoder_attention_heads", "attention_heads",
                     "num_encoder_attention_heads", "num_decoder_attention_heads",
                     "swa_num_attention_heads", "linear_num_value_heads", "linear_num_heads",
                     "num_key_value_heads", "swa_num_key_value_heads", "linear_num_key_heads",
                     "num_kv_heads", "num_global_key_value_heads", "index_n_heads", "kv_n_heads",
                     "num_query_groups", "n_mamba_heads"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "d_head", "dim_head", "kv_channels",
                     "attention_head_dim", "linear_key_head_dim", "linear_value_head_dim",
                     "linear_head_dim", "qk_head_dim", "index_head_dim", "global_head_dim",
                     "query_pre_attn_scalar", "attention_head_size", "v_head_dim",
                     "swa_v_head_dim", "q_lora_rank", "kv_lora_rank", "hidden_size_per_layer_input",
                     "o_lora_rank", "hc_lowrank", "lightning_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
                     "zero_expert_num"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_top_k",
                     "top_k_experts", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts",
                     "num_shared_experts", "moe_num_shared_experts", "num_nextn_predict_layers",
                     "first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "time_step_rank",
                     "mamba_dt_rank", "d_rel", "laurel_rank", "adapter_rank", "gated_norm_rank",
                     "loop_gate_rank"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len",
                     "model_max_length", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("rotary_dim",), 8),
    **dict.fromkeys(("num_kv_shared_layers",), 0),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
                     "sep_token_id", "cls_token_id"), 0),
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY,
    "decoder_vocab_size": VOCABULARY, "tie_word_embeddings": False, "is_decoder": True,
    "sliding_window": 16, "sliding_window_size": 16, "chunk_size": 16, "mamba_chunk_size": 16,
    "num_nextn_predict": 0, "image_size": 32, "codebook_size": 32, "conv_dim": 32,
    "rel_extent": 32, "pronunciation_vocab_size": 16, "shape_vocab_size": 16,
    "encoder_hash_byte_group_vocab": 64, "forced_eos_token_id": None,
    "image_token_id": 90, "video_token_id": 91, "audio_token_id": 92, "boi_token_id": 93,
    "eoi_token_id": 94, "boa_token_id": 95, "image_token_index": 90, "boi_token_index": 93,
    "eoi_token_index": 94, "eoa_token_index": 92, "eoa_token_id": 92, "vision_start_token_id": 93,
    "vision_end_token_id": 94,
}  # fmt: skip
# What a family needs besides, or otherwise. A name that is no argument of its class is passed on.
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
BY_LAYER = {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}


class AsIs(dict):
    """A part of a configuration that is passed on as it stands."""


OVERRIDES: dict[str, dict] = {
    "dbrx": {"attn_config": AsIs(kv_n_heads=1, clip_qkv=8.0, rope_theta=1e4),
             "ffn_config": AsIs(ffn_hidden_size=INNER, moe_num_experts=4, moe_top_k=2)},
    "bamba": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "cohere_compass_text": BY_LAYER,
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0,
                                         "vocab_size_per_layer_input": 0}},
    "gemma4_unified": {"vision_config": {"mm_embed_dim": HIDDEN, "output_proj_dims": HIDDEN,
                                         "mm_posemb_size": 16}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "inkling2_loop_text": {"unpadded_vocab_size": VOCABULARY},
    "inkling2_text": {"unpadded_vocab_size": VOCABULARY},
    "jetmoe": {"kv_channels": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8],
                 "attn_layers": ["local", "local"], "local_attn_chunk_length": 8},
    "mimo_v2_flash": {"num_attention_heads": 8},  # eight keys where attention is local
    "xlm": {"causal": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "hybrid"], "attention_hidden_size": 2 * HIDDEN,
              "attention_head_dim": 32},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "mamba_headdim": 8, "n_mamba_heads": 8,
               "attention_hidden_size": 2 * HIDDEN, "attention_head_dim": 32},
    "zaya": {"num_experts_per_tok": 1},
    "dory": {"num_hidden_layers": 6},
    "dots3_note": {"text_config": {"per_layer_config": {}},
                   "vision_config": {"per_layer_config": {}},
                   "audio_config": {"adapter_input_size": HIDDEN}},
    "dots3_note_text": {"per_layer_config": {}},
}  # fmt: skip


# A tiny model


def config_of(family: str):
    """A small configuration of a family, its parts included."""
    return _small(CONFIG_MAPPING[family], OVERRIDES.get(family, {}))


def _small(kind: type, overrides: dict):
    try:
        default = kind()
    except Exception:  # noqa: BLE001, it takes arguments to make one
        default = None
    known = {*getattr(kind, "__dataclass_fields__", ()), *(default.to_dict() if default else ())}
    values = {name: value for name, value in SMALL.items() if name in known}
    parts = getattr(kind, "sub_configs", {})
    for name in parts:
        own = overrides.get(name, {})
        part = _part(kind, default, name)
        if isinstance(own, AsIs):
            values[name] = dict(own)
        elif part is not None:
            values[name] = _small(part, own)
    if "qk_rope_head_dim" in known and "head_dim" in known:
        values["head_dim"] = SMALL["qk_rope_head_dim"]
    values |= {name: value for name, value in overrides.items() if name not in parts}
    return kind(**values)


def _part(kind: type, default, name: str) -> type | None:
    """The class of a part: that of the default configuration, or what the class says."""
    if default is not None:
        found = getattr(default, name, None)
        return None if found is None else type(found)
    said = getattr(kind, "sub_configs_defaults", {}).get(name)
    return CONFIG_MAPPING[said.model_type] if getattr(said, "model_type", None) else None


def build(family: str) -> nn.Module:
    """A tiny model whose weights are drawn so that every product moves its logits."""
    config = config_of(family)
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


def tokens_of() -> np.ndarray:
    """``[4, length]`` ids that no family keeps for something else."""
    generator = np.random.default_rng(0)
    return generator.integers(8, 88, (4, LENGTH), dtype=np.int32)


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
    head, found = model.get_output_embeddings(), {}
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        module = modules[name.rpartition(".")[0]]
        known = [(a, n) for end, a, n in STACKS.get(family, ()) if name.endswith(end)]
        if known:
            found[name] = known[0]
        elif isinstance(module, Conv1D) and name.endswith("weight"):
            found[name] = (0, 1)
        elif isinstance(module, nn.Linear) and name.endswith("weight") and module is not head:
            found[name] = (1, 1)
        elif parameter.ndim == 3 and not isinstance(module, nn.Conv1d):
            wide = list(parameter.shape[1:]).index(HIDDEN) if HIDDEN in parameter.shape[1:] else 0
            if name.endswith(EXPERTS_IN):
                found[name] = (wide, len(parameter))
            elif name.endswith(EXPERTS_OUT):
                found[name] = (1 - wide, len(parameter))
    return found


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
                turned = matrix if axis == 1 else matrix.T
                values, _ = quantize_matrix(turned, *settings)
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
    from flatminima.tools.options import AuditOptions

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
    found = {"family": family, "kind": FAMILIES[family], "verdict": "not built", "reason": ""}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        try:
            model = build(family)
            model.save_pretrained(folder)
            found["parameters"] = sum(p.numel() for p in model.parameters())
        except Exception as error:  # noqa: BLE001, whatever a family's configuration raises
            return found | {"reason": _line(error)}
        tokens = tokens_of()
        try:
            losses, coverage = audited(folder, tokens, Path(place))
        except Exception as error:  # noqa: BLE001
            return found | _refusal(error, folder, family, tokens)
        found |= {"share": coverage["weights"] / coverage["of"], "left": coverage["left"],
                  "unread": coverage["unread"], "losses": losses}  # fmt: skip
        try:
            plain = plain_losses(folder, family, tokens)
        except Exception as error:  # noqa: BLE001
            return found | {"verdict": "wrong", "reason": f"the plain script: {_line(error)}"}
        found["plain"] = plain
        apart = {name: abs(np.subtract(losses[name], plain[name])).max() for name in plain}
        if max(apart.values()) > CLOSE:
            words = ", ".join(f"{name} {value:.1e}" for name, value in apart.items())
            return found | {"verdict": "wrong", "reason": f"{words} nats apart"}
        if abs(np.subtract(plain["int4"], plain["fp32"])).max() < 10 * CLOSE:
            return found | {"verdict": "wrong", "reason": "INT4 changes nothing: nothing is shown"}
        return found | {"verdict": "measured"}


def _refusal(error: Exception, folder: Path, family: str, tokens: np.ndarray) -> dict:
    """What a model that the audit does not measure is called; one that runs must be measured."""
    from flatminima.errors import UserError

    if not isinstance(error, UserError):  # which is what the command prints as one line
        return {"verdict": "traceback", "reason": _line(error)}
    reason = re.sub(r"^(step 1: |/\S+: )+", "", " ".join(str(error).split()))[:200]
    if "looks ahead" not in reason:
        with contextlib.suppress(Exception):
            plain_losses(folder, family, tokens)
            return {"verdict": "wrong", "reason": f"refused, but it runs: {reason}"}
    return {"verdict": "refused", "reason": reason}


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]


# All of them


def _guarded(family: str) -> dict:
    """``run_family`` in a process of its own, without its words, and not for ever."""
    quiet()
    signal.alarm(SECONDS)  # ends the process; its family is then missing
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stderr(nowhere):
        return run_family(family)


def run_all(families: list[str], jobs: int) -> list[dict]:
    """Results in the order of ``families``, some at a time."""
    results = []
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        started = [(family, pool.apply_async(_guarded, (family,))) for family in families]
        for family, found in started:
            try:
                result = found.get(2 * SECONDS)
            except multiprocessing.TimeoutError:
                result = {"family": family, "kind": FAMILIES[family], "verdict": "traceback",
                          "reason": f"longer than {SECONDS} s, or its process ended"}  # fmt: skip
            share = f"{100 * result['share']:5.1f} %" if "share" in result else ""
            print(family, share, result["verdict"], result.get("reason", ""), flush=True)
            results.append(result)
    return results


def quiet() -> None:
    """One thread, and nothing of what transformers has to say."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


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
    lines = [
        "# The zoo",
        "",
        "Every causal language model family of transformers as a tiny random model, loaded and "
        "probed as the audit command does it. Its FP32, INT4 and INT8 losses are held to "
        f"{CLOSE:g} nats per token against a plain script that shares no code with it "
        "([tests/zoo.py](../tests/zoo.py)). Written by `make zoo`; not edited by hand.",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}: {good} of {total} model types "
        f"({100 * good / total:.1f} %) measured or refused for a stated reason.",
        "",
        "| verdict | model types | meaning |",
        "|---|---|---|",
        *(f"| {v} | {counts[v]} | {meaning} |" for v, meaning in VERDICTS.items()),
        "",
        "Shares are of these tiny models, whose embeddings weigh little; `left out` names the "
        "largest weights that stay as they are, with `*` for numbers (`vectors`: biases and norms) "
        "and in brackets those that are linear layers but were not read when the model ran.",
        "",
        "| model type | class | weights quantized | left out | verdict |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        share = f"{100 * result['share']:.1f} %" if "share" in result else ""
        reason = f": {result['reason']}" if result.get("reason") else ""
        verdict = (result["verdict"] + reason).replace("|", "\\|")
        cells = [result["family"], result["kind"], share, _left(result), verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _left(result: dict) -> str:
    unread = result.get("unread", {})
    kinds = [name for name in result.get("left", {}) if name not in unread]
    words = [f"`{name.removesuffix('.weight')}`" for name in kinds[:4]]
    if len(kinds) > 4:
        words.append(f"{len(kinds) - 4} more")
    if unread:
        words.append(f"({len(unread)} kinds not read, such as `{min(unread)}`)")
    return ", ".join(words)


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
