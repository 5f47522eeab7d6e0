"""A model: its files, its head, and how a GPT-NeoX is built.

A checkpoint is a folder in Hugging Face format, loaded as float32. One that does not load as
a whole, or that is no longer what its writer wrote, is a ``DamagedFile`` with one line that
names it; one that does not fit into memory is refused before anything is allocated.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flatminima.device import check_memory
from flatminima.errors import DamagedFile, Diverged, NotMeasured, UserError, one_line
from flatminima.files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    WEIGHTS_INDEX,
    atomic_path,
    check_digest,
    flush,
    read_index,
    refusals_named,
    remove,
    temporary_name,
    write_digests,
)

logger = logging.getLogger(__name__)

ADAPTER_FILE = "adapter_config.json"
# As safetensors calls what float32 can hold, and tables such as deepseek_v4's experts of a token.
NOT_QUANTIZED = ("F64", "F32", "F16", "BF16", "I64", "BOOL")
INDEX_SUFFIX = ".index.json"
# Masks and tables that old checkpoints carry beside the weights: GPT-NeoX and GPT-Neo;
# GPT-2, GPT-J and CodeGen; every family with rotary embeddings.
LEGACY_BUFFERS = (
    "attention.bias", "attention.masked_bias",
    ".attn.bias", ".attn.masked_bias", ".attn.causal_mask",
    "rotary_emb.inv_freq",
)  # fmt: skip
LOGITS_AT_ONCE = 2**23  # numbers; 32 MiB, which the caches of processors hold for the most part
LOOKS_AHEAD = 1e-4  # of the largest logit: what rounding may move in a causal model


# Checkpoints


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Say which file it is that a library cannot read, in one line."""
    try:
        yield
    except (UserError, FileNotFoundError, FloatingPointError):
        raise
    except Exception as error:  # whatever a library raises over somebody's file
        reason = one_line(error)
        if "trust_remote_code" in str(error):
            reason = "it wants code that came with it to be run, which is never done here"
        raise DamagedFile(f"{path}: cannot be read as a checkpoint: {reason}") from error


@contextmanager
def model_failures_named(but: Callable[[Exception], bool] = lambda _: False) -> Iterator[None]:
    """Turn what a model's own code raises into ``NotMeasured``, and log its traceback.

    The model is somebody else's, so a ``KeyError`` in it is not a mistake of this package. Errors
    for which ``but`` is true are raised unchanged, and so are ``UserError`` and its kinds.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if but(error):
            raise
        logger.debug("the model's code failed", exc_info=error)
        raise NotMeasured(one_line(error)) from error


def check_kind(folder: Path) -> int:
    """How many numbers a checkpoint's weights are, read from its headers alone.

    Only files of the form that ``load_model`` loads are counted. Raises ``DamagedFile`` where
    the checkpoint would be measured as something that it is not.
    """
    already = f"{folder}: its weights are already quantized ({{}}); measure the model they are of"
    with damage_named(folder / CONFIG_FILE):
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        for part in (config, *(value for value in config.values() if isinstance(value, dict))):
            if quantization := part.get("quantization_config"):
                raise DamagedFile(already.format(quantization.get("quant_method", CONFIG_FILE)))
    if (folder / ADAPTER_FILE).is_file():
        raise DamagedFile(
            f"{folder}: an adapter lies beside the model ({ADAPTER_FILE}) and is not applied; "
            "measure the two merged (merge_and_unload of peft)"
        )
    numbers = 0
    for name, stored in _headers(_loaded_files(folder)):
        if not is_legacy_buffer(name):
            shape, dtype = stored.get_shape(), stored.get_dtype()
            numbers += math.prod(shape)
            if len(shape) > 1 and dtype not in NOT_QUANTIZED:
                raise DamagedFile(already.format(f"{name} is stored as {dtype}"))
    return numbers


def _loaded_files(folder: Path) -> list[Path]:
    """The weight files that transformers loads: one file if it exists, else the index's shards."""
    for name in (WEIGHTS_FILE, WEIGHTS_INDEX):
        if (folder / name).is_file():
            return [path for path in weight_files(folder / name) if path.is_file()]
    return []


def load_model(folder: str | Path, device: str = "cpu") -> nn.Module:
    """A causal language model with its weights widened to float32, ready to evaluate.

    Only safetensors are read, and no code that comes with a checkpoint is run. Raises
    ``DamagedFile`` where a file is not as it was written or where its weights are not exactly
    the model's (transformers would draw what is missing at random), ``Diverged`` where one is
    not finite.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # a job's own bar covers all files
    folder = Path(folder)
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        check_digest(folder / name)
    check_memory(folder, device, check_kind(folder))
    with damage_named(folder):
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # refused below, with their names
            output_loading_info=True,
        )
    for name, stored, own in found["mismatched_keys"]:
        raise DamagedFile(f"{folder}: {name} has shape {list(stored)}; the model's is {list(own)}")
    for kind in ("missing", "unexpected"):
        names = sorted(n for n in found[f"{kind}_keys"] if not is_legacy_buffer(n))
        if names:
            raise DamagedFile(f"{folder}: {len(names)} {kind} weights, such as {names[0]}")
    for name, parameter in model.named_parameters():
        if count := int(parameter.isfinite().logical_not().sum()):
            raise Diverged(f"{folder}: {count} of {parameter.numel()} {name} are not finite")
    return model.to(device).eval()


def peculiarities(model: nn.Module) -> list[str]:
    """What a reader of its numbers should know about a model, one line each."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = getattr(model.config.get_text_config(decoder=True), "tie_word_embeddings", False)
    own = tied and head is not None and head.weight is not embedding.weight
    line = "the configuration ties the head, but the file has a head of its own, which is used"
    return [line] if own else []


@torch.inference_mode()
def check_causal(model: nn.Module, ids: Tensor) -> None:
    """Raise ``NotMeasured`` where tokens change what is said of those before them.

    ``ids`` is ``[1, length]``; the first half, turned round, takes the place of the second, and
    the logits of the first must stay.
    """
    half = ids.shape[1] // 2
    other = torch.cat([ids[:, :half], ids[:, :half].flip(1)], dim=1)
    first, second = (
        model(input_ids=part, use_cache=False).logits[:, :half].double()
        for part in (ids[:, : 2 * half], other)
    )
    if (first - second).abs().amax() > LOOKS_AHEAD * first.abs().amax():
        name = (model.config.architectures or [type(model).__name__])[0]
        raise NotMeasured(
            f"{name} looks ahead: tokens change what it says of those before them, so it is no "
            "causal language model"
        )


def save_model(model: nn.Module, folder: Path, *, digests: bool = False) -> None:
    """Write ``config.json`` and ``model.safetensors`` in Hugging Face format.

    With ``digests`` their sha256 stand beside them, and whoever loads them checks that they
    are as they were written. A folder appears whole, in place of one that is there already.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(folder)
    staging = temporary_name(folder)
    old = folder.with_name(f".{folder.name}.0.tmp")  # a killed one's is removed by temporary_name
    remove(staging)
    try:
        with refusals_named(folder):
            model.save_pretrained(staging)
        if digests:
            write_digests(staging, (CONFIG_FILE, WEIGHTS_FILE))
        for file in staging.iterdir():
            flush(file)
        if folder.is_dir():
            os.replace(folder, old)
        os.replace(staging, folder)
        flush(folder.parent)
        remove(old)
    finally:
        remove(staging)


def is_legacy_buffer(name: str) -> bool:
    """Whether a tensor of a checkpoint is a mask or a table rather than a weight."""
    return name.endswith(LEGACY_BUFFERS)


# Their files


def weight_files(path: str | Path) -> list[Path]:
    """The safetensors files behind ``path``: itself, or the shards that it is the index of."""
    path = Path(path)
    if not path.name.endswith(INDEX_SUFFIX):
        return [path]
    return [path.with_name(name) for name in sorted(set(read_index(path).values()))]


def _headers(files: Iterable[Path]) -> Iterator[tuple[str, Any]]:
    """Name of each stored tensor and what tells its shape and dtype; nothing is read."""
    for file in files:
        with damage_named(file), safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118, no mapping
                yield name, stored.get_slice(name)


def weights_dtypes(path: str | Path) -> str:
    """The dtypes in a safetensors file or its shards, such as ``F32`` or ``F16+U8``."""
    return "+".join(sorted({part.get_dtype() for _, part in _headers(weight_files(path))}))


def read_weights(path: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each weight in name order, buffers left out.

    ``path`` is a safetensors file or the index of its shards. Raises ``DamagedFile`` where
    a file cannot be read or is not as it was written.
    """
    with damage_named(path), ExitStack() as stack:
        places = {}
        for file in weight_files(path):
            check_digest(file)
            stored = stack.enter_context(safe_open(file, framework="pt"))
            places |= dict.fromkeys(stored.keys(), stored)
        for name in sorted(places):
            if not is_legacy_buffer(name):
                yield name, places[name].get_tensor(name)


def tensor_digests(path: str | Path) -> dict[str, str]:
    """sha256 of each weight's bytes: finds a single stale tensor in an otherwise new file."""
    return {
        name: hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest()
        for name, tensor in read_weights(path)
    }


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically. Raises ``OSError`` where there is no room for it."""
    with atomic_path(path) as temporary, refusals_named(path):
        save_file(tensors, temporary, metadata=metadata)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; ``DamagedFile`` where it is not a whole one."""
    with damage_named(path), safe_open(path, framework="pt") as stored:
        return load_file(path), stored.metadata() or {}


# A model of one's own


def build_model(architecture: dict, vocab_size: int, seed: int) -> nn.Module:
    """A GPT-NeoX model with Pythia's architecture and initialisation, in float32.

    ``architecture`` has ``hidden_size``, ``num_layers``, ``num_heads`` and ``max_length``.
    small_init (std sqrt(2 / 5d)) for embeddings, head, query/key/value and the first MLP
    matrix; wang_init (std 2 / (L sqrt(d))) for the two matrices that write into the residual
    stream; vectors as transformers has them: norms one and zero, biases zero.
    """
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    hidden, layers = architecture["hidden_size"], architecture["num_layers"]
    small_init, wang_init = math.sqrt(2.0 / (5.0 * hidden)), 2.0 / (layers * math.sqrt(hidden))
    config = GPTNeoXConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=architecture["num_heads"],
        intermediate_size=4 * hidden,
        max_position_embeddings=architecture["max_length"],
        rotary_pct=0.25,
        use_parallel_residual=True,
        tie_word_embeddings=False,
        hidden_act="gelu",
        initializer_range=small_init,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPTNeoXForCausalLM(config).float()
    generator = torch.Generator().manual_seed(seed)
    residual = ("attention.dense.weight", "dense_4h_to_h.weight")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                std = wang_init if name.endswith(residual) else small_init
                parameter.normal_(0.0, std, generator=generator)
    return model


# The head


def head_in_pieces(
    model: nn.Module, ids: Tensor, at_once: int = LOGITS_AT_ONCE
) -> tuple[nn.Linear, Tensor] | None:
    """The head, where it is to be applied to some positions at a time, and what it is applied to.

    States are ``[positions, width]``, the last position of each sequence of ``[batch, length]``
    left out. ``None`` where all logits are small enough, or are not just what a linear head
    makes: some families scale or cap them.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(head, nn.Linear) or getattr(model, "base_model", model) is model:
        return None
    if ids.numel() * head.out_features <= at_once:
        return None

    def states(ids: Tensor) -> Tensor:
        return model.base_model(input_ids=ids, use_cache=False).last_hidden_state

    if model.config.model_type != "gpt_neox":
        with torch.no_grad():
            few = torch.arange(4, device=head.weight.device)[None]
            logits = model(input_ids=few, use_cache=False).logits
            if not torch.allclose(logits, head(states(few)), rtol=1e-5, atol=1e-6):
                return None
    return head, states(ids)[:, :-1].flatten(0, 1)
