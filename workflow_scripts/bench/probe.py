"""A whole probe of one Pythia-160m checkpoint: full precision, INT4 and INT8, load included."""

import argparse
import copy
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import fake_quantize, linear_weights
from workflow_scripts.bench.models import published_checkpoint, random_tokens
from workflow_scripts.bench.results import Result, Target, judged
from workflow_scripts.bench.timing import MIB, Settings, child, median, peak, ratio, reset_peak

ROW = "probe"
SPECS = {
    "int4_g128": AffineQuantizer(bits=4, granularity="group", symmetric=False, group_size=128),
    "int8_channel": AffineQuantizer(bits=8, granularity="channel", symmetric=True),
}
OURS, COPIES, ALONE = "ours", "copies", "alone"
SCRIPT = "a script that copies the model for each precision"


def run(settings: Settings) -> list[Result]:
    """Time and peak memory of a process of its own for each way."""
    shape, sequences, length = ("14m", 2, 64) if settings.quick else ("160m", 4, 512)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = published_checkpoint(shape, Path(folder, "checkpoint"))
        found = {kind: [] for kind in (OURS, COPIES, ALONE)}
        for _ in range(settings.rounds(3)):
            for kind, rounds in found.items():
                rounds.append(_child(kind, checkpoint, sequences, length, settings))
    nll = {kind: rounds[0]["nll"] for kind, rounds in found.items()}
    # By its INT4 and INT8 perplexities the script is seen to do the same.
    if not np.allclose(nll[OURS], nll[COPIES], rtol=1e-5):
        raise AssertionError(f"other perplexities: {nll}")
    seconds = {kind: [r["seconds"] for r in rounds] for kind, rounds in found.items()}
    memory = {kind: [r["bytes"] / MIB for r in rounds] for kind, rounds in found.items()}
    weights = checkpoint_bytes(shape) / MIB
    return [
        judged(
            Target("≥", 1.3), row=ROW, what="FP32, INT4 and INT8, load included", against=SCRIPT,
            ours=median(seconds[OURS]), theirs=median(seconds[COPIES]), unit="s",
            ratio=ratio(seconds[COPIES], seconds[OURS]), means="times faster:",
            note="ours also has KL divergences and changed predictions, the script perplexity only",
        ),
        judged(
            Target("≤", 1.3), row=ROW, what="peak memory", unit="MiB",
            against="FP32 weights and activations: FP32 alone, plain", ours=median(memory[OURS]),
            theirs=median(memory[ALONE]), means="times as much:",
            ratio=ratio(memory[OURS], memory[ALONE]),
            note=f"the FP32 weights are {weights:.0f} MiB",
        ),
        judged(
            None, row=ROW, what="peak memory", against=SCRIPT, ours=median(memory[OURS]),
            theirs=median(memory[COPIES]), unit="MiB", ratio=ratio(memory[COPIES], memory[OURS]),
            means="times less:",
        ),
    ]  # fmt: skip


def checkpoint_bytes(shape: str) -> int:
    """Bytes of a shape's weights in float32."""
    from flatminima.tools.costs import describe_shape, read_config
    from workflow_scripts.bench.models import architecture

    return 4 * describe_shape(read_config(architecture(shape))).parameters


def _child(kind: str, folder: Path, sequences: int, length: int, settings: Settings) -> dict:
    return child(
        "workflow_scripts.bench.probe", kind, folder, sequences, length, settings.threads,
        settings.clock, settings.device, threads=settings.threads,
    )  # fmt: skip


def probe(folder: Path, tokens: np.ndarray, device: str) -> list[float]:
    """Our probe, as rules run it; mean NLL of each precision."""
    from flatminima.model import load_model
    from flatminima.quantizers import Quantized
    from flatminima.scoring import score_variants

    model = load_model(folder, device)
    variants = {name: Quantized(model, spec) for name, spec in SPECS.items()}
    scores = score_variants(model, tokens, variants, batch_size=len(tokens), device=device)
    return [record.mean_nll() for record in scores.values()]


@torch.inference_mode()
def script(folder: Path, tokens: np.ndarray, device: str, specs: dict) -> list[float]:
    """What one writes first: a copy of the model, its layers replaced, and a plain forward."""
    from transformers import AutoModelForCausalLM

    from workflow_scripts.bench.perplexity import plain

    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    ids = torch.from_numpy(tokens.astype(np.int64)).to(device)
    found = [plain(original, ids)]
    for spec in specs.values():
        model = copy.deepcopy(original)
        for weight in linear_weights(model).values():
            weight.copy_(fake_quantize(weight, spec))
        found.append(plain(model, ids))
    return found


def main() -> None:
    """Run one way in this process and print what it took."""
    parser = argparse.ArgumentParser()
    for name, kind in (("kind", str), ("folder", Path), ("sequences", int), ("length", int),
                       ("threads", int), ("clock", str), ("device", str)):  # fmt: skip
        parser.add_argument(name, type=kind)
    given = parser.parse_args()
    settings = Settings(threads=given.threads, clock=given.clock, device=given.device)
    settings.prepare()
    warm_up()
    tokens = random_tokens(given.sequences, given.length)
    before, started = reset_peak(), settings.now()
    if given.kind == OURS:
        nll = probe(given.folder, tokens, given.device)
    else:
        specs = SPECS if given.kind == COPIES else {}
        nll = script(given.folder, tokens, given.device, specs)
    taken = settings.now() - started
    memory = torch.cuda.max_memory_allocated() if given.device == "cuda" else peak() - before
    print(json.dumps({"nll": nll, "seconds": taken, "bytes": memory}))


def warm_up() -> None:
    """Import what every way imports, so that none is charged for it."""
    from transformers import AutoModelForCausalLM, GPTNeoXForCausalLM  # noqa: F401

    import flatminima.model
    import flatminima.scoring  # noqa: F401

    weight = torch.randn(128, 128)
    for spec in SPECS.values():
        fake_quantize(weight, spec)


if __name__ == "__main__":
    main()
