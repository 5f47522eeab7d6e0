"""A model: its files, its numeric mode and device, its head, and how a GPT-NeoX is built.

A checkpoint is a folder in Hugging Face format, loaded as float32. One that does not load as
a whole, or that is no longer what its writer wrote, is a ``DamagedFile`` with one line that
names it; one that does not fit into memory is refused before anything is allocated.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flatminima.errors import DamagedFile, Diverged, NotMeasured, UserError, one_line
from flatminima.files import (
    DIGESTS_FILE,
    atomic_path,
    check_digest,
    flush,
    read_index,
    refusals_named,
    remove,
    temporary_name,
    write_digests,
)

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"
ADAPTER_FILE = "adapter_config.json"
WIDENED = ("F64", "F32", "F16", "BF16")  # as safetensors calls what float32 can hold
TABLES = ("I64", "BOOL")  # of indices, such as the experts of each token in deepseek_v4
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
_TRIED = 4  # positions on which a head is tried


# Numeric mode and device


def prepare_backend() -> None:
    """Turn TF32 off and flush subnormals to zero."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_flush_denormal(True)


def assert_float32(model: nn.Module) -> None:
    """Raise ``TypeError`` where any parameter is not float32, or where TF32 is allowed."""
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise TypeError(f"{name} is {parameter.dtype}; measurements need float32")
    if torch.backends.cuda.matmul.allow_tf32:
        raise TypeError("TF32 is allowed; call prepare_backend() before measuring")


def choose_device(wanted: str) -> str:
    """The device that ``auto`` stands for here; another name is returned as it is.

    Raises ``ValueError`` where a device is asked for by name and is not there.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    there = ["cuda"] * cuda + ["mps"] * mps + ["cpu"]
    if wanted not in ("auto", *there):
        valid = ", ".join(there)
        raise ValueError(f"config key device: {wanted!r} is not available here; valid: {valid}")
    return there[0] if wanted == "auto" else wanted


def available_bytes(
    device: str, groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes that a model can still take on a device; limits of a batch job's cgroups kept."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info()[0]
    left = psutil.virtual_memory().available
    name = re.search(r"^0::/?(.*)$", own.read_text(), re.MULTILINE) if own.exists() else None
    folder = groups / name[1] if name else groups
    for place in (folder, *folder.parents):
        try:
            limit = int((place / "memory.max").read_text())
            left = min(left, limit - int((place / "memory.current").read_text()))
        except (OSError, ValueError):  # no limit here
            continue
    return max(0, left)


def check_memory(folder: Path, device: str, numbers: int) -> None:
    """``UserError`` with what is missing where ``numbers`` in float32 are more than there is."""
    for place in dict.fromkeys(("cpu", device)):
        needed, there = 4 * numbers, available_bytes(place)
        if needed > there:
            raise UserError(
                f"{folder}: its weights take {needed / 2**30:.1f} GiB in float32 and "
                f"{there / 2**30:.1f} GiB of memory are free on {place}; "
                f"{(needed - there) / 2**30:.1f} GiB are missing"
            )


# Checkpoints


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Say which file it is that a library cannot read, in one line."""
    try:
        yield
    except Exception as error:  # whatever a library raises over somebody's file
        if isinstance(error, UserError | FileNotFoundError | FloatingPointError):
            raise
        reason = one_line(error)
        if "trust_remote_code" in str(error):
            reason = "it wants code that came with it to be run, which is never done here"
        raise DamagedFile(f"{path}: cannot be read as a checkpoint: {reason}") from error


def check_kind(folder: Path) -> int:
    """How many numbers a checkpoint's weights are, read from its headers alone.

    Raises ``DamagedFile`` for what would be measured as something that it is not: weights
    that are quantized already, or a base model beside the adapter that was trained.
    """
    with damage_named(folder / CONFIG_FILE):
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        nested = [part for part in config.values() if isinstance(part, dict)]
    for part in (config, *nested):
        if quantization := part.get("quantization_config"):
            method = quantization.get("quant_method", "quantization_config in config.json")
            raise DamagedFile(
                f"{folder}: its weights are already quantized ({method}); measure the model that "
                "they were made from"
            )
    if (folder / ADAPTER_FILE).is_file():
        raise DamagedFile(
            f"{folder}: an adapter lies beside the model ({ADAPTER_FILE}) and is not applied; "
            "measure the two merged (merge_and_unload of peft)"
        )
    numbers = 0
    for file in sorted(folder.glob("*.safetensors")):
        with damage_named(file), safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118, no mapping
                if is_legacy_buffer(name):
                    continue
                part = stored.get_slice(name)
                numbers += math.prod(part.get_shape())
                if len(part.get_shape()) > 1 and part.get_dtype() not in (*WIDENED, *TABLES):
                    raise DamagedFile(
                        f"{folder}: {name} is stored as {part.get_dtype()}, so its weights are "
                        "already quantized; measure the model that they were made from"
                    )
    return numbers


def load_model(folder: str | Path, device: str = "cpu") -> nn.Module:
    """Load a causal language model with its weights widened to float32, ready to evaluate.

    transformers would otherwise keep the dtype of the file, float16 for Pythia, and
    fill weights that the file lacks with random numbers. Only safetensors are read, and
    no code that comes with a checkpoint is run. Raises ``DamagedFile`` where a file is
    not as it was written or where its weights are not exactly the model's (legacy buffers
    are ignored), ``Diverged`` where one is not finite.
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
    for name, stored, expected in found["mismatched_keys"]:
        raise DamagedFile(
            f"{folder}: {name} has shape {list(stored)}; the model's is {list(expected)}"
        )
    for kind in ("missing", "unexpected"):
        names = sorted(n for n in found[f"{kind}_keys"] if not is_legacy_buffer(n))
        if names:
            raise DamagedFile(f"{folder}: {len(names)} {kind} weights, such as {names[0]}")
    for name, parameter in model.named_parameters():
        count = count_not_finite(parameter)
        if count:
            raise Diverged(f"{folder}: {count} of {parameter.numel()} {name} are not finite")
    return model.to(device).eval()


def text_config(model: nn.Module) -> object:
    """The part of a model's configuration that is about text; the whole where it has no parts."""
    find = getattr(model.config, "get_text_config", None)
    return find(decoder=True) if find else model.config


def peculiarities(model: nn.Module) -> list[str]:
    """What a reader of its numbers should know about a model, one line each."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = getattr(text_config(model), "tie_word_embeddings", False)
    if not tied or head is None or head.weight is embedding.weight:
        return []
    return [
        "the configuration ties the head to the embedding, but the file has a head of its own, "
        "which is used"
    ]


@torch.inference_mode()
def check_causal(model: nn.Module, ids: Tensor) -> None:
    """Raise ``NotMeasured`` where tokens change what is said of those before them.

    ``ids`` is ``[1, length]``; its second half is replaced, and the logits of the first half
    must stay. A model of masked language, whose perplexity would mean nothing, fails.
    """
    half = ids.shape[1] // 2
    other = torch.cat([ids[:, :half], ids[:, :half].flip(1), ids[:, 2 * half :]], dim=1)
    if not half or torch.equal(ids, other):
        other = torch.cat([ids[:, :-1], (ids[:, -1:] + 1) % max(2, int(ids.max()))], dim=1)
        half = ids.shape[1] - 1
    first, second = (
        model(input_ids=part, use_cache=False).logits[:, :half].double() for part in (ids, other)
    )
    moved = (first - second).abs().amax()
    if moved > LOOKS_AHEAD * first.abs().amax():
        name = (model.config.architectures or [type(model).__name__])[0]
        raise NotMeasured(
            f"{name} looks ahead: tokens change what it says of those before "
            "them, so it is no causal language model"
        )


@torch.inference_mode()
def count_not_finite(tensor: Tensor) -> int:
    """How many numbers are infinite or none; a sum is finite only where all its terms are."""
    if torch.isfinite(tensor.sum()):
        return 0
    return int(torch.isfinite(tensor).logical_not().sum())


def save_model(model: nn.Module, folder: Path, *, digests: bool = False) -> None:
    """Write ``config.json`` and ``model.safetensors`` in Hugging Face format.

    With ``digests`` their sha256 stand beside them, and whoever loads them checks that they
    are as they were written. A folder appears whole. One that is there already is replaced
    file by file, so that it holds whole weights at every moment.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(folder)
    staging = temporary_name(folder)
    remove(staging)
    try:
        with refusals_named(folder):
            model.save_pretrained(staging)
        if digests:
            write_digests(staging, ("config.json", WEIGHTS_FILE))
        for file in staging.iterdir():
            flush(file)
        if folder.is_dir():
            _replace_files(staging, folder)
        else:
            os.replace(staging, folder)
        flush(folder.parent)
    finally:
        remove(staging)


def _replace_files(source: Path, target: Path) -> None:
    remove(target / DIGESTS_FILE)
    new = sorted(source.iterdir(), key=lambda file: file.name == DIGESTS_FILE)
    for file in new:
        os.replace(file, target / file.name)
    for file in target.iterdir():
        if file.name not in {moved.name for moved in new}:
            remove(file)
    flush(target)


def is_legacy_buffer(name: str) -> bool:
    """Whether a tensor of a checkpoint is a mask or a table rather than a weight."""
    return name.endswith(LEGACY_BUFFERS)


def weight_files(path: str | Path) -> list[Path]:
    """The safetensors files behind ``path``: itself, or the shards that it is the index of."""
    path = Path(path)
    if not path.name.endswith(INDEX_SUFFIX):
        return [path]
    return [path.with_name(name) for name in sorted(set(read_index(path).values()))]


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
        name: hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in read_weights(path)
    }


def weights_dtypes(path: str | Path) -> str:
    """The dtypes in a safetensors file or its shards, such as ``float32`` or ``float16+uint8``."""
    found = set()
    for file in weight_files(path):
        with safe_open(file, framework="pt") as weights:
            found |= {str(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118
    return "+".join(sorted(found))


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically. Raises ``OSError`` where there is no room for it."""
    with atomic_path(path) as temporary, refusals_named(path):
        save_file(tensors, temporary, metadata=metadata)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file.

    Raises ``DamagedFile`` where the file is not a whole one.
    """
    metadata = read_metadata(path)
    with damage_named(path):
        return load_file(path), metadata


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file and nothing else."""
    with damage_named(path), safe_open(path, framework="pt") as stored:
        return stored.metadata() or {}


# A model of one's own


def build_model(architecture: dict, vocab_size: int, seed: int) -> nn.Module:
    """A GPT-NeoX model with Pythia's architecture and initialisation, in float32.

    ``architecture`` has ``hidden_size``, ``num_layers``, ``num_heads`` and
    ``max_length``. small_init (std sqrt(2 / 5d)) for embeddings, head, query/key/value
    and the first MLP matrix; wang_init (std 2 / (L sqrt(d))) for the two matrices
    that write into the residual stream; biases zero.
    """
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    hidden, layers = architecture["hidden_size"], architecture["num_layers"]
    small_init = math.sqrt(2.0 / (5.0 * hidden))
    wang_init = 2.0 / (layers * math.sqrt(hidden))
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
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue  # layer norms start at one and zero, biases at zero
            writes_residual = name.endswith(("attention.dense.weight", "dense_4h_to_h.weight"))
            parameter.normal_(
                0.0, wang_init if writes_residual else small_init, generator=generator
            )
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
    return model


# The head


def head_in_pieces(
    model: nn.Module, ids: Tensor, at_once: int = LOGITS_AT_ONCE
) -> nn.Linear | None:
    """The head where it is to be applied to some positions of ``[batch, length]`` at a time.

    ``None`` where all logits are small enough, or are not just what a linear head makes.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(head, nn.Linear) or getattr(model, "base_model", model) is model:
        return None
    large = ids.numel() * head.out_features > at_once
    return head if large and _is_plain(model, head) else None


def last_states(model: nn.Module, ids: Tensor) -> Tensor:
    """What the head is applied to, ``[batch, length, width]``."""
    return model.base_model(input_ids=ids, use_cache=False).last_hidden_state


@torch.no_grad()
def _is_plain(model: nn.Module, head: nn.Linear) -> bool:
    """Whether logits are the head's outputs and nothing else; some families scale or cap them."""
    if model.config.model_type == "gpt_neox":
        return True
    ids = torch.arange(_TRIED, device=head.weight.device)[None]
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.allclose(logits, head(last_states(model, ids)), rtol=1e-5, atol=1e-6)
