"""A model: its files, its head, and how a GPT-NeoX is built.

A checkpoint is a folder in Hugging Face format, loaded as float32. If its files are incomplete
or are not as they were written, loading raises ``DamagedFile`` with one line that names the file.
If it does not fit into memory, loading is refused before anything is allocated.
"""

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
# safetensors dtypes that count as unquantized: floats, and lookup tables of integers (deepseek_v4
# maps tokens to experts).
NOT_QUANTIZED = ("F64", "F32", "F16", "BF16", "I64", "BOOL")
INDEX_SUFFIX = ".index.json"
# Endings of masks and tables that old checkpoints store beside their weights.
LEGACY_BUFFERS = (
    "attention.bias",  # GPT-NeoX and GPT-Neo
    "attention.masked_bias",
    ".attn.bias",  # GPT-2, GPT-J and CodeGen
    ".attn.masked_bias",
    ".attn.causal_mask",
    "rotary_emb.inv_freq",  # every family with rotary embeddings
)
# Settings of a configuration that change the form of a model's output.
OUTPUT_FLAGS = {"return_dict": True, "output_attentions": False, "output_hidden_states": False}
LOGITS_AT_ONCE = 2**23  # 32 MiB in float32, which mostly fits into a processor's cache
A_NUMBER = re.compile(r"[-+]?\d[\d_.]*(e[-+]?\d+)?", re.IGNORECASE)
CAUSAL_TOLERANCE = 1e-4  # of the largest logit; rounding moves a causal model's logits by less


# Checkpoints


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Turn a library's error over a file into a ``DamagedFile`` that names the file."""
    try:
        yield
    except (UserError, FileNotFoundError, FloatingPointError):
        raise
    except Exception as error:  # libraries raise errors of many kinds here
        reason = one_line(error)
        if "trust_remote_code" in str(error):
            reason = "it needs its own code to be run, which this project never does"
        if Path(path).is_dir():
            reason += numbers_as_text(Path(path) / CONFIG_FILE)
        raise DamagedFile(f"{path}: cannot be read as a checkpoint: {reason}") from error


def numbers_as_text(config_file: Path) -> str:
    """A remark on keys of a model's configuration that hold a number as text, or nothing.

    Libraries then fail at an operation with the number and do not name the key.
    """

    def found_in(section: dict, prefix: str) -> Iterator[str]:
        for key, value in section.items():
            if isinstance(value, dict):
                yield from found_in(value, f"{prefix}{key}.")
            elif isinstance(value, str) and A_NUMBER.fullmatch(value) and "version" not in key:
                yield f"{prefix}{key} is the text {value!r}"

    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
        texts = ", ".join(found_in(config, ""))
    except (OSError, ValueError, AttributeError):
        return ""
    return f"; in {CONFIG_FILE} {texts}, not a number" if texts else ""


@contextmanager
def model_failures_named(but: Callable[[Exception], bool] = lambda _: False) -> Iterator[None]:
    """Turn errors of a model's own code into ``NotMeasured``, and log their traceback.

    The code is another library's, so a ``KeyError`` in it is not a bug of this package. Errors
    for which ``but`` is true are raised unchanged, and so are ``UserError`` and its subclasses.
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
    """Count the numbers in a checkpoint's weights. Reads only the headers of the files.

    Only the files that ``load_model`` loads are counted. Raises ``DamagedFile`` if the weights
    are already quantized, or if an adapter is beside the model.
    """
    with damage_named(folder / CONFIG_FILE):
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        # Models of text and images have one configuration per part.
        parts = [part for part in config.values() if isinstance(part, dict)]
        for part in (config, *parts):
            quantization = part.get("quantization_config")
            if quantization:
                method = quantization.get("quant_method", CONFIG_FILE)
                raise _already_quantized(folder, method)
    if (folder / ADAPTER_FILE).is_file():
        raise DamagedFile(
            f"{folder}: an adapter is beside the model ({ADAPTER_FILE}) and would not be applied; "
            "measure the merged model (merge_and_unload of peft)"
        )

    numbers = 0
    for name, header in _headers(_loaded_files(folder)):
        if is_legacy_buffer(name):
            continue
        shape = header.get_shape()
        dtype = header.get_dtype()
        numbers += math.prod(shape)
        if len(shape) > 1 and dtype not in NOT_QUANTIZED:
            raise _already_quantized(folder, f"{name} is stored as {dtype}")
    return numbers


def _already_quantized(folder: Path, evidence: str) -> DamagedFile:
    return DamagedFile(
        f"{folder}: its weights are already quantized ({evidence}); "
        "measure the model that they were made from"
    )


def _loaded_files(folder: Path) -> list[Path]:
    """The weight files that transformers loads: one file if it exists, else the index's shards."""
    for name in (WEIGHTS_FILE, WEIGHTS_INDEX):
        if (folder / name).is_file():
            return [path for path in weight_files(folder / name) if path.is_file()]
    return []


def load_model(folder: str | Path, device: str = "cpu") -> nn.Module:
    """Load a causal language model in float32, ready to evaluate.

    Only safetensors files are read, and code that comes with a checkpoint is never run. Raises
    ``DamagedFile`` if a file is not as it was written, or if its weights are not exactly those of
    the model: transformers would draw missing ones at random. Raises ``Diverged`` if a weight is
    not finite, and ``UserError`` if the model does not fit into memory.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # a job's own bar covers all files
    folder = Path(folder)
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        check_digest(folder / name)
    check_memory(folder, device, check_kind(folder))
    with damage_named(folder):
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # refused below, with their names
            output_loading_info=True,
        )
    mismatches = list(report["mismatched_keys"])
    if mismatches:
        name, stored_shape, model_shape = mismatches[0]
        raise DamagedFile(
            f"{folder}: {name} has shape {list(stored_shape)}; the model's is {list(model_shape)}"
        )
    for kind in ("missing", "unexpected"):
        names = sorted(name for name in report[f"{kind}_keys"] if not is_legacy_buffer(name))
        if names:
            raise DamagedFile(f"{folder}: {len(names)} {kind} weights, such as {names[0]}")
    for name, parameter in model.named_parameters():
        count = int(parameter.isfinite().logical_not().sum())
        if count:
            raise Diverged(f"{folder}: {count} of {parameter.numel()} {name} are not finite")
    # What the writer's session had set belongs to its output, not to its weights.
    for config in (model.config, model.config.get_text_config(decoder=True)):
        for flag, setting in OUTPUT_FLAGS.items():
            if getattr(config, flag, setting) != setting:
                setattr(config, flag, setting)
    return model.to(device).eval()


def peculiarities(model: nn.Module) -> list[str]:
    """Facts about a model that a reader of its numbers should know, one line each."""
    head = model.get_output_embeddings()
    config = model.config.get_text_config(decoder=True)
    should_be_tied = getattr(config, "tie_word_embeddings", False)
    if not should_be_tied or head is None:
        return []
    if head.weight is model.get_input_embeddings().weight:
        return []
    return ["the configuration ties the head, but the file has a head of its own, which is used"]


@torch.inference_mode()
def check_causal(model: nn.Module, ids: Tensor) -> None:
    """Raise ``NotMeasured`` if a token changes the model's prediction for earlier tokens.

    ``ids`` is ``[1, length]``. Its second half is replaced by its first half in reverse. The
    logits of the first half must not change.
    """
    half = ids.shape[1] // 2

    def first_half_logits(sequence: Tensor) -> Tensor:
        return model(input_ids=sequence, use_cache=False).logits[:, :half].double()

    original = first_half_logits(ids[:, : 2 * half])
    reversed_ending = torch.cat([ids[:, :half], ids[:, :half].flip(1)], dim=1)
    changed = first_half_logits(reversed_ending)
    if (original - changed).abs().amax() > CAUSAL_TOLERANCE * original.abs().amax():
        name = (model.config.architectures or [type(model).__name__])[0]
        raise NotMeasured(
            f"{name} looks ahead: a token changes the prediction for earlier ones, "
            "so it is not a causal language model"
        )


def save_model(model: nn.Module, folder: Path, *, digests: bool = False) -> None:
    """Write ``config.json`` and ``model.safetensors`` in Hugging Face format.

    With ``digests``, the sha256 of both files is written beside them and checked when they are
    loaded. The folder appears complete, and replaces an existing one.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(folder)
    staging = temporary_name(folder)
    # If this process is killed, the next call of ``temporary_name`` removes this folder.
    replaced_folder = folder.with_name(f".{folder.name}.0.tmp")
    remove(staging)
    try:
        with refusals_named(folder):
            model.save_pretrained(staging)
        if digests:
            write_digests(staging, (CONFIG_FILE, WEIGHTS_FILE))
        for file in staging.iterdir():
            flush(file)
        if folder.is_dir():
            os.replace(folder, replaced_folder)
        os.replace(staging, folder)
        flush(folder.parent)
        remove(replaced_folder)
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
    """Name of each stored tensor and a slice that knows its shape and dtype; reads no numbers."""
    for file in files:
        with damage_named(file), safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, ``safe_open`` is not a mapping
                yield name, tensors.get_slice(name)


def weights_dtypes(path: str | Path) -> str:
    """The dtypes in a safetensors file or its shards, such as ``F32`` or ``F16+U8``."""
    dtypes = {header.get_dtype() for _, header in _headers(weight_files(path))}
    return "+".join(sorted(dtypes))


def read_weights(path: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each weight in name order, without masks and tables.

    ``path`` is a safetensors file or the index of its shards. Raises ``DamagedFile`` if a file
    cannot be read or is not as it was written.
    """
    with damage_named(path), ExitStack() as open_files:
        file_by_name = {}
        for file in weight_files(path):
            check_digest(file)
            tensors = open_files.enter_context(safe_open(file, framework="pt"))
            file_by_name |= dict.fromkeys(tensors.keys(), tensors)
        for name in sorted(file_by_name):
            if not is_legacy_buffer(name):
                yield name, file_by_name[name].get_tensor(name)


def tensor_digests(path: str | Path) -> dict[str, str]:
    """sha256 of each weight's bytes: finds a single stale tensor in an otherwise new file."""
    return {
        name: hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest()
        for name, tensor in read_weights(path)
    }


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically. Raises ``OSError`` if the disk is full."""
    with atomic_path(path) as temporary, refusals_named(path):
        save_file(tensors, temporary, metadata=metadata)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. Raises ``DamagedFile`` if it is incomplete."""
    with damage_named(path), safe_open(path, framework="pt") as file:
        return load_file(path), file.metadata() or {}


# A new model


def build_model(architecture: dict, vocab_size: int, seed: int) -> nn.Module:
    """A GPT-NeoX model with Pythia's architecture and initialisation, in float32.

    ``architecture`` has ``hidden_size`` (d), ``num_layers`` (L), ``num_heads`` and
    ``max_length``. Weights are drawn as in gpt-neox:

    - small_init, std sqrt(2 / 5d): embeddings, head, query/key/value and the first MLP matrix
    - wang_init, std 2 / (L sqrt(d)): the two matrices that write into the residual stream
    - vectors as in transformers: norms one and zero, biases zero
    """
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    hidden = architecture["hidden_size"]
    layers = architecture["num_layers"]
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
    into_residual_stream = ("attention.dense.weight", "dense_4h_to_h.weight")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Vectors keep what transformers gave them: ones for norms, zeros for biases.
            if parameter.ndim > 1:
                std = wang_init if name.endswith(into_residual_stream) else small_init
                parameter.normal_(0.0, std, generator=generator)
    return model


# The head


class Finish(NamedTuple):
    """What a family does with the output of its head: nothing, a scale, a cap, or both.

    The scale is a factor (Cohere, Falcon-H1) or a divisor (Granite). The cap is a hyperbolic
    tangent (Gemma 2 and 3).
    """

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, outputs: Tensor) -> Tensor:
        """The model's logits."""
        logits = outputs if self.scale == 1.0 else outputs * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


PLAIN = Finish()


def _finishes(config: Any) -> list[Finish]:
    """All that a configuration may ask for. Which of it is true, the model's logits decide."""

    def number(key: str) -> float | None:
        setting = getattr(config, key, None)
        return float(setting) if isinstance(setting, int | float) and setting else None

    scales = [1.0, number("logit_scale"), number("lm_head_multiplier")]
    divisor = number("logits_scaling")
    scales.append(divisor and 1.0 / divisor)
    caps = dict.fromkeys((None, number("final_logit_softcapping")))
    return [Finish(scale, cap) for scale in scales if scale for cap in caps]


def head_in_pieces(
    model: nn.Module, ids: Tensor, at_once: int = LOGITS_AT_ONCE, *, only_plain: bool = False
) -> tuple[nn.Linear, Tensor, Finish] | None:
    """The output head, its inputs, and what becomes of its output, to make logits in pieces.

    The inputs are ``[positions, width]`` without the last position of each sequence; ``ids`` is
    ``[batch, length]``. ``None`` if there are at most ``at_once`` logits, or if the model's logits
    are neither the output of a linear head nor, unless ``only_plain``, one of ``_finishes`` of it.
    """
    # ``base_model`` of a model without a separate body is the model itself.
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(head, nn.Linear) or getattr(model, "base_model", model) is model:
        return None
    if ids.numel() * head.out_features <= at_once:
        return None

    def states(ids: Tensor) -> Tensor:
        return model.base_model(input_ids=ids, use_cache=False).last_hidden_state

    finish = PLAIN
    if model.config.model_type != "gpt_neox":  # known to have a plain head
        with torch.no_grad():
            four_ids = torch.arange(4, device=head.weight.device)[None]
            logits = model(input_ids=four_ids, use_cache=False).logits
            outputs = head(states(four_ids))
        possible_finishes = (
            [PLAIN] if only_plain else _finishes(model.config.get_text_config(decoder=True))
        )
        close = partial(torch.allclose, logits, rtol=1e-5, atol=1e-6)
        finish = next((finish for finish in possible_finishes if close(finish(outputs))), None)
        if finish is None:
            return None
    return head, states(ids)[:, :-1].flatten(0, 1), finish
