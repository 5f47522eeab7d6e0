"""Derive OLI's amplitude from gradient statistics at the fork point."""

from pathlib import Path

from flatminima.files import write_json
from flatminima.forks.calibration import calibrate
from flatminima.jobs import logged
from flatminima.model import choose_device, load_model, load_tensors, prepare_backend
from flatminima.text.tokens import read_tokens


def main(*, weights: str, train: str, state: str | None, output: str, suite: str, settings: dict,
         device: str, code: str) -> None:  # fmt: skip
    """Write ``calibration.json``; ``settings`` is ``SuitePlan.calibration_settings``."""
    prepare_backend()
    model = load_model(Path(weights).parent, choose_device(device))
    moments = None if state is None else load_tensors(state)[0]
    found = calibrate(model, read_tokens(train), moments, settings)
    named = {"suite": suite, "step": settings["start"], "assumed": "gradient"}
    write_json(output, named | found | {"settings": settings, "code": code})


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
