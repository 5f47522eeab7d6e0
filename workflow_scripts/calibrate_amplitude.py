"""Derive OLI's amplitude from gradient statistics at the fork point."""

from pathlib import Path

from workflow_scripts.lib import calibration
from workflow_scripts.lib.checkpoints import load_model, load_tensors
from workflow_scripts.lib.logs import logged
from workflow_scripts.lib.numerics import prepare_backend
from workflow_scripts.lib.probing import choose_device
from workflow_scripts.lib.provenance import write_json
from workflow_scripts.lib.quantizers import QuantizerSpec, linear_weights
from workflow_scripts.lib.tokens import read_tokens


def main(*, weights: str, train: str, state: str | None, output: str, suite: str, settings: dict,
         device: str, code: str) -> None:  # fmt: skip
    """Write ``calibration.json``; ``settings`` is ``SuitePlan.calibration_settings``."""
    prepare_backend()
    model = load_model(Path(weights).parent, choose_device(device))
    spec, training = QuantizerSpec(**settings["quantizer"]), settings["training"]
    found = calibration.gradient_statistics(
        model, read_tokens(train), spec, start=settings["start"], batches=settings["batches"],
        batch_size=settings["batch_size"], eps=training["eps"],
    )  # fmt: skip
    updates = {"gradient": found["mean_abs"], "adam_fresh": found["adam_fresh"]}
    if state is not None:
        names = list(linear_weights(model, spec.layers))
        adam = {key: training[key] for key in ("beta1", "beta2", "eps")}
        updates["adam_restored"] = calibration.restored_update(
            load_tensors(state)[0], names, **adam
        )
    step = calibration.mean_grid_step(model, spec)
    numbers = {"mean_grid_step": step, "rate": settings["rate"], "bump_steps": settings["bump"]}
    values = calibration.amplitudes(
        mean_step=step, rate=settings["rate"], bump_steps=settings["bump"], updates=updates
    )
    content = {"suite": suite, "step": settings["start"], "assumed": "gradient"}
    content |= {"gradients": found, "updates_per_unit_rate": updates, **numbers}
    write_json(output, content | {"amplitudes": values, "settings": settings, "code": code})


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            weights=snakemake.input.weights,
            train=snakemake.input.train,
            state=snakemake.input.get("state"),
            output=snakemake.output.calibration,
            suite=snakemake.wildcards.suite,
            **snakemake.params,
        )
