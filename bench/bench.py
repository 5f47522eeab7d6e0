"""Benchmarks beside other tools: ``make bench``, ``make bench ROWS="quantize probe"``.

A row is a function that returns lines of the table. Each row runs in a process of its
own; every round runs each action once, and ratios are taken within a round. Nothing of
the workflow imports this.
"""

import argparse
import copy
import datetime
import gc
import math
import operator
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow_scripts"))

from flatminima.device import prepare_backend  # noqa: E402
from flatminima.files import atomic_path, write_table  # noqa: E402
from flatminima.model import build_model, load_model, save_model  # noqa: E402
from flatminima.quantizer_specs import FP32, AffineQuantizer  # noqa: E402
from flatminima.quantizers import fake_quantize, linear_weights  # noqa: E402
from flatminima.scoring import ModelForward, score, score_quantized  # noqa: E402
from flatminima.training.gradients import next_token_loss  # noqa: E402
from flatminima.training.loop import Recipe, batch_rows, build_optimizer, train  # noqa: E402

HERE = Path(__file__).resolve().parent
COLUMNS = (
    "row",
    "what",
    "against",
    "ours",
    "theirs",
    "unit",
    "ratio",
    "means",
    "target",
    "verdict",
    "note",
    "machine",
    "conditions",
    "measured",
)
BEGIN = "<!-- what follows is written by make bench -->"
END = "<!-- end of what it writes -->"
RELATIONS = {"≥": operator.ge, "≤": operator.le}
VOCABULARY = 50304
PROBE_BATCH = 4  # sequences
# Hidden size, layers, heads.
SHAPES = {"mini": (64, 2, 4), "14m": (128, 6, 4), "160m": (768, 12, 12)}
SPECS = {
    "int4": AffineQuantizer(bits=4, granularity="group", symmetric=False, group_size=128),
    "int8": AffineQuantizer(bits=8, granularity="channel", symmetric=True),
}
LR = 1e-3
Seconds = dict[str, list[float]]


def judge(target: str, ratio: float) -> str:
    """``met`` or ``missed`` of a target such as ``≥ 1.5``; nothing where there is none."""
    if not target:
        return ""
    relation, bound = target.split()
    return "met" if RELATIONS[relation](ratio, float(bound)) else "missed"


def line(
    what: str,
    against: str,
    ours: float,
    theirs: float,
    unit: str,
    ratio: float,
    means: str,
    target: str = "",
    note: str = "",
) -> dict:
    """One line of the table: ``ratio`` is what ``means`` puts into words."""
    return {
        "what": what,
        "against": against,
        "ours": ours,
        "theirs": theirs,
        "unit": unit,
        "ratio": ratio,
        "means": means,
        "target": target,
        "verdict": judge(target, ratio),
        "note": note,
    }


def in_a_process_of_its_own(function: Callable, *arguments: object) -> object:
    """What the function returns there."""
    with ProcessPoolExecutor(1, get_context("spawn"), prepare_backend) as pool:
        return pool.submit(function, *arguments).result()


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median over the rounds of ``above / below``, which were measured next to each other."""
    return float(np.median(np.divide(above, below)))


def side_by_side(actions: Mapping[str, Callable], rounds: int, inner: int = 1) -> Seconds:
    """Seconds of each action in each round; each ran once before, which does not count."""
    for action in actions.values():
        action()
    names = list(actions)
    seconds = {name: [] for name in actions}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            gc.collect()
            started = time.perf_counter()
            for _ in range(inner):
                actions[name]()
            seconds[name].append((time.perf_counter() - started) / inner)
    return seconds


def faster(seconds: Seconds, other: str, what: str, target: str = "", note: str = "") -> dict:
    """Ours against another way, in milliseconds."""
    return line(
        what,
        other,
        1e3 * median(seconds["ours"]),
        1e3 * median(seconds[other]),
        "ms",
        ratio(seconds[other], seconds["ours"]),
        "times faster:",
        target,
        note,
    )


def fresh_model(shape: str, vocabulary: int = VOCABULARY, length: int = 2048) -> nn.Module:
    """A model of Pythia's architecture with fresh weights."""
    hidden, layers, heads = SHAPES[shape]
    architecture = {
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "max_length": length,
    }
    return build_model(architecture, vocabulary, seed=0).eval()


def random_tokens(sequences: int, length: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Token ids ``[sequences, length]``."""
    ids = np.random.default_rng(0).integers(0, vocabulary, (sequences, length))
    return ids.astype(np.uint16)


# Rows


def quantize(quick: bool) -> list[dict]:
    """One matrix of Pythia-160m, INT4 in groups of 128, beside other tools and a plain copy."""
    matrices = cycle([torch.randn(3072, 768) * 0.02 for _ in range(12)])  # none is in the cache
    actions = {
        "ours": lambda: fake_quantize(next(matrices), SPECS["int4"]),
        "plain copy": lambda: next(matrices).clone(),
    }
    note = ""
    for name, load in (("torchao affine primitives", _torchao), ("bitsandbytes nf4", _bnb)):
        try:
            tool = load()
            tool(next(matrices))
            actions[name] = lambda tool=tool: tool(next(matrices))
        except Exception as error:  # not installed, or not made for this machine
            note += f"{name} skipped: {' '.join(str(error).split())[:100]}; "
    seconds = side_by_side(actions, 2 if quick else 15, inner=12)
    found = [
        faster(seconds, name, "INT4 g128, one pass")
        for name in actions
        if name not in ("ours", "plain copy")
    ]
    copies = ratio(seconds["ours"], seconds["plain copy"])
    return [
        *found,
        line(
            "INT4 g128, one pass",
            "plain copy",
            1e3 * median(seconds["ours"]),
            1e3 * median(seconds["plain copy"]),
            "ms",
            copies,
            "times as long:",
            "≤ 2",
            note.strip("; "),
        ),
    ]


def _torchao() -> Callable[[Tensor], Tensor]:
    from torchao.quantization import quant_primitives as names

    def action(weight: Tensor) -> Tensor:
        kind = names.MappingType.ASYMMETRIC
        block = (1, 128)
        scale, zero = names.choose_qparams_affine(weight, kind, block, torch.uint8, 0, 15)
        codes = names.quantize_affine(weight, block, scale, zero, torch.uint8, 0, 15)
        return names.dequantize_affine(
            codes, block, scale, zero, torch.uint8, 0, 15, output_dtype=torch.float32
        )

    return action


def _bnb() -> Callable[[Tensor], Tensor]:
    from bitsandbytes import functional

    def action(weight: Tensor) -> Tensor:
        codes, state = functional.quantize_4bit(weight, blocksize=128, quant_type="nf4")
        return functional.dequantize_4bit(codes, state)

    return action


def perplexity(quick: bool) -> list[dict]:
    """FP32 perplexity of a Pythia-160m-shaped model on 2,048 tokens."""
    shape, sequences, length = ("14m", 2, 64) if quick else ("160m", 4, 512)
    model = fresh_model(shape)
    tokens = random_tokens(sequences, length)
    ids = torch.from_numpy(tokens.astype(np.int64))

    def ours() -> float:
        return score(tokens, {FP32: ModelForward(model)}, batch_size=sequences)[FP32].mean_nll()

    other = "plain forward and cross-entropy"
    actions = {"ours": ours, other: lambda: plain(model, ids)}
    if not math.isclose(ours(), plain(model, ids), rel_tol=1e-5):
        raise AssertionError("ours finds another perplexity")
    seconds = side_by_side(actions, 2 if quick else 5)
    return [faster(seconds, other, f"{shape} shape, {sequences * length:,} tokens")]


@torch.inference_mode()
def plain(model: nn.Module, tokens: Tensor) -> float:
    """Mean NLL as tutorials compute it."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


def plain_in_batches(model: nn.Module, tokens: Tensor) -> float:
    """``plain`` of batches of equal size."""
    losses = [plain(model, batch) for batch in tokens.split(PROBE_BATCH)]
    return sum(losses) / len(losses)


def probe(quick: bool) -> list[dict]:
    """A whole probe of a checkpoint, load included, each way in a process of its own."""
    shape, sequences, length = ("14m", 2, 64) if quick else ("160m", 8, 512)
    ways = {"ours": [], "copies": []}
    with tempfile.TemporaryDirectory() as folder:
        save_model(fresh_model(shape), Path(folder, "checkpoint"))
        for _ in range(2 if quick else 3):
            for way, rounds in ways.items():
                job = way, f"{folder}/checkpoint", sequences, length
                rounds.append(in_a_process_of_its_own(probe_once, *job))
    nll = {way: rounds[0]["nll"] for way, rounds in ways.items()}
    if not np.allclose(nll["ours"], nll["copies"], rtol=1e-5):
        raise AssertionError(f"other perplexities: {nll}")
    seconds = {way: [found["seconds"] for found in rounds] for way, rounds in ways.items()}
    memory = {way: [found["mib"] for found in rounds] for way, rounds in ways.items()}
    script = "a script that copies the model for each precision"
    return [
        line(
            "FP32, INT4 and INT8, load included",
            script,
            median(seconds["ours"]),
            median(seconds["copies"]),
            "s",
            ratio(seconds["ours"], seconds["copies"]),
            "times its time:",
            "≤ 1.1",
            "ours has KL divergences and changed predictions besides",
        ),
        line(
            "peak memory",
            script,
            median(memory["ours"]),
            median(memory["copies"]),
            "MiB",
            ratio(memory["copies"], memory["ours"]),
            "times less:",
        ),
    ]


def probe_once(way: str, folder: str, sequences: int, length: int) -> dict:
    """One way of ``probe`` in this process: mean NLLs, seconds, and peak memory in MiB."""
    from transformers import AutoModelForCausalLM

    tokens = random_tokens(sequences, length)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    started = time.perf_counter()
    if way == "ours":
        model = load_model(folder)
        scores, _ = score_quantized(model, tokens, SPECS, batch_size=PROBE_BATCH)
        nll = [record.mean_nll() for record in scores.values()]
    else:
        original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = torch.from_numpy(tokens.astype(np.int64))
        nll = [plain_in_batches(original, ids)]
        for spec in SPECS.values():
            model = copy.deepcopy(original)
            with torch.no_grad():
                for weight in linear_weights(model).values():
                    weight.copy_(fake_quantize(weight.detach(), spec))
            nll.append(plain_in_batches(model, ids))
    taken = time.perf_counter() - started
    return {"nll": nll, "seconds": taken, "mib": (_status("VmHWM") - before) / 1024}


def _status(key: str) -> int:
    """KiB that Linux says of this process."""
    return int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0])


def training_step(quick: bool) -> list[dict]:
    """A training step of mini's and Pythia-14m's shape beside Trainer, and the same losses."""
    cases = {"mini": (16, 64, 60, 5, "≥ 1.5"), "14m": (4, 512, 4, 4, "≥ 1.2")}
    results = []
    for shape in ("mini",) if quick else cases:
        batch, length, steps, rounds, target = cases[shape]
        steps, rounds = (3, 2) if quick else (steps, rounds)
        vocabulary = 512 if shape == "mini" else VOCABULARY
        tokens = random_tokens(64 * batch, length, vocabulary)

        def model(shape=shape, vocabulary=vocabulary, length=length) -> nn.Module:
            return fresh_model(shape, vocabulary, length)

        ours = _updates(model(), tokens, batch)
        eager = eager_losses(model(), tokens, batch)
        expected = [next(eager) for _ in range(3)]
        losses = [next(ours) for _ in range(3)]
        difference = float(np.max(np.abs(np.divide(losses, expected) - 1)))
        other = "Hugging Face Trainer"
        trainer = _trainer(model(), tokens, batch)
        seconds: Seconds = {"ours": [], other: []}
        for _ in range(rounds):
            started = time.perf_counter()
            for _ in range(steps):
                next(ours)
            seconds["ours"].append((time.perf_counter() - started) / steps)
            seconds[other].append(trainer(steps))
        what = f"{shape}, batch {batch} x {length}"
        results += [
            faster(seconds, other, what, target),
            line(
                f"{shape}, losses of 3 steps",
                "plain eager loop",
                losses[-1],
                expected[-1],
                "nats",
                difference,
                "largest relative difference:",
                "≤ 0.0001",
            ),
        ]
    return results


def _updates(model: nn.Module, tokens: np.ndarray, batch: int) -> Iterator[float]:
    recipe = Recipe(batch, 0.0, 0.9, 0.95, 1e-8, 1.0, seed=0)
    updates = train(
        model, build_optimizer(model, recipe), tokens, lambda step: LR, recipe, start=0, stop=10**9
    )
    return (update.loss_nats for update in updates)


def eager_losses(model: nn.Module, tokens: np.ndarray, batch: int) -> Iterator[float]:
    """The loop of a tutorial: the same batches, AdamW as it comes, gradients clipped."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    model.train()
    for step in range(10**9):
        rows = batch_rows(step, sequences=len(tokens), batch_size=batch, seed=0)
        loss = next_token_loss(model, torch.from_numpy(tokens[rows].astype(np.int64)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def _trainer(model: nn.Module, tokens: np.ndarray, batch: int) -> Callable[[int], float]:
    """Seconds a step of transformers' Trainer, the first of each call left out."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in torch.from_numpy(tokens.astype(np.int64))]

    class Ends(TrainerCallback):
        times: list[float]

        def on_step_end(self, *_: object, **__: object) -> None:
            self.times.append(time.perf_counter())

    def seconds(steps: int) -> float:
        ends = Ends()
        ends.times = []
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                max_steps=steps + 1,
                learning_rate=LR,
                adam_beta2=0.95,
                per_device_train_batch_size=batch,
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                logging_strategy="no",
                save_strategy="no",
            )
            Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[ends]).train()
        return median(np.diff(ends.times).tolist())

    return seconds


WORDS = "the weights of a model are rounded to few values and the loss is measured once more"


def overhead(quick: bool) -> list[dict]:
    """What the workflow adds to pure computing: an audit of 154 checkpoints of mini's shape."""
    from flatminima.scoring import Prober
    from flatminima.text.tokens import train_tokenizer

    revisions = 6 if quick else 154
    with tempfile.TemporaryDirectory() as name:
        folder = copy_workflow(Path(name))
        config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
        mini = config["suites"]["mini"]
        for number in range(revisions):
            save_model(fresh_model("mini", 512, 64), folder / f"run/checkpoint-{number}")
        (folder / "text.txt").write_text("\n\n".join(f"{WORDS} {k}" for k in range(9000)))
        texts = [f"{WORDS} {k}" for k in range(500)]
        train_tokenizer(texts, 512).save(str(folder / "tokenizer.json"))
        suite = {
            "label": "benchmark",
            "source": "local",
            "pattern": "run/checkpoint-{step}",
            "device": "cpu",
            "threads": 1,
            "tokenizer": {"path": "tokenizer.json"},
            "text": {"source": "files", "validation": [{"path": "text.txt"}]},
            "batches": {"validation": dict(mini["batches"]["validation"])},
            "probe": dict(mini["probe"]),
            # All of them are one model.
            "integrity": {"duplicate": "ignore", "final_weights_early": "ignore"},
        }
        (folder / "many.yaml").write_text(
            yaml.safe_dump({"suite": "many", "suites": {"many": suite}})
        )
        tokens = "results/many/data/validation.safetensors"
        snakemake(folder, "--cores", "1", tokens, "--configfile", "many.yaml")
        low, high = mini["probe"]["low_bit"], mini["probe"]["high_bit"]
        settings = {
            "quantizers": {name: config["quantizers"][name] for name in (low, high)},
            "roles": {low: "low_bit", high: "high_bit"},
            "batch_size": 16,
            "device": "cpu",
        }
        prober = Prober(str(folder / tokens), settings, threads=1)
        taken = []
        for number in range(min(revisions, 21)):
            model = load_model(folder / f"run/checkpoint-{number}")
            started = time.perf_counter()
            prober(model, number)
            taken.append(time.perf_counter() - started)
        pure = median(taken[1:])
        wall = snakemake(
            folder, "--cores", "1", "results/many/audit.csv", "--configfile", "many.yaml"
        )
    return [
        line(
            f"audit of {revisions} revisions, one core",
            "the probes themselves",
            wall / revisions,
            pure,
            "s a revision",
            wall / revisions - pure,
            "seconds more a revision:",
            "≤ 0.3",
            f"{wall:.0f} s in all",
        )
    ]


def planning(quick: bool) -> list[dict]:
    """A dry run over 154 revisions of a hub suite, each probed in a job of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = copy_workflow(Path(name))
        change = {"suites": {"pythia-160m": {"probe": {"steps_per_job": 1}}}}
        (folder / "one.yaml").write_text(yaml.safe_dump(change))
        arguments = ("results/pythia-160m/audit.csv", "-n", "--configfile", "one.yaml")
        taken = [snakemake(folder, *arguments) for _ in range(2 if quick else 5)]
    return [
        line("154 revisions", "", median(taken), math.nan, "s", median(taken), "seconds:", "≤ 3")
    ]


def copy_workflow(folder: Path) -> Path:
    """Copy what a run needs, and no results, into ``folder``."""
    for part in (
        "Snakefile",
        "config.yaml",
        "rules",
        "envs",
        "notebooks",
        "profiles",
        "resources",
        "workflow_scripts",
    ):
        put = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        put(ROOT / part, folder / part)
    return folder


def snakemake(folder: Path, *arguments: str) -> float:
    """Seconds of a run of Snakemake there. Raises ``RuntimeError`` with what it said."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "snakemake", "--quiet=all", *arguments]
    started = time.perf_counter()
    run = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True)
    if run.returncode:
        raise RuntimeError((run.stdout + run.stderr)[-3000:])
    return time.perf_counter() - started


ROWS = {
    row.__name__: row for row in (quantize, perplexity, probe, training_step, overhead, planning)
}


# The table


def write(folder: Path, row: str, lines: Sequence[dict], conditions: Mapping[str, str]) -> None:
    """Put a row's lines into the table and the page; other rows stay."""
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "results.csv"
    page = folder / "README.md"
    kept = [found for found in read(table) if found["row"] != row and found["row"] in ROWS]
    kept += [{"row": row, **found, **conditions} for found in lines]
    kept.sort(key=lambda found: list(ROWS).index(found["row"]))
    kept = pd.DataFrame(kept, columns=COLUMNS)
    write_table(
        table, kept.map(lambda value: f"{value:.4g}" if isinstance(value, float) else value)
    )
    text = page.read_text(encoding="utf-8") if page.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}"
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    with atomic_path(page) as temporary:
        temporary.write_text(
            f"{before}{BEGIN}\n\n{markdown(read(table))}\n\n{END}{after}", encoding="utf-8"
        )


def read(table: Path) -> list[dict]:
    """The lines of a table that ``write`` wrote; none where there is no table."""
    if not table.exists():
        return []
    return pd.read_csv(table, dtype=str, keep_default_na=False).to_dict("records")


def markdown(lines: Sequence[Mapping[str, str]]) -> str:
    """The table for people, then notes and where each row was measured."""
    head = "| row | what | against | ours | theirs | ratio | target | verdict |"
    body = [
        "| {row} | {what} | {against} | {ours} {unit} | {theirs} {unit} | {means} {ratio} "
        "| {target} | {verdict} |".format(**found)
        .replace("nan s", "–")
        .replace("| missed |", "| **missed** |")
        for found in lines
    ]
    notes = [f"- {n['row']}, {n['what']}: {n['note']}" for n in lines if n["note"]]
    places = dict.fromkeys(
        f"- {n['row']}: {n['machine']}; {n['conditions']}; {n['measured']}" for n in lines
    )
    parts = ["\n".join([head, "|---|---|---|---:|---:|---|---|---|", *body]), "\n".join(notes)]
    return "\n\n".join([*filter(None, parts), "Measured on:", "\n".join(places)])


def machine() -> str:
    """Processor, cores and the versions that matter."""
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = found[1] if found else platform.processor() or platform.machine()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    return f"{model}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; {versions}"


def main() -> int:
    """Measure; the exit status says whether every row could be measured."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--output", type=Path, help="folder; needed with --quick")
    options = parser.parse_args()
    if options.quick and options.output is None:
        parser.error("--quick needs an --output folder: it is no measurement to keep")
    failed = 0
    for row in options.rows:
        load = os.getloadavg()[0]
        try:
            lines = in_a_process_of_its_own(ROWS[row], options.quick)
        except Exception:  # whatever it measures beside
            traceback.print_exc()
            print(f"{row} could not be measured", file=sys.stderr)
            failed += 1
            continue
        conditions = {
            "machine": machine(),
            "measured": datetime.date.today().isoformat(),
            "conditions": f"{'quick, ' if options.quick else ''}load before {load:.1f}",
        }
        write(options.output or HERE, row, lines, conditions)
        for found in lines:
            print(
                f"{row}: {found['what']}: {found['means']} {found['ratio']:.3g} "
                f"{found['target']} {found['verdict']}",
                flush=True,
            )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
