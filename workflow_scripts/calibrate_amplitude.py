"""Derive OLI's amplitude from gradient statistics at the fork point (appendix B)."""

from pathlib import Path

from flatminima.calibration import calibrate
from flatminima.files import write_json
from flatminima.jobs import run
from flatminima.model import choose_device, load_model, load_tensors, prepare_backend
from flatminima.text.tokens import read_tokens


def main(suite: str, weights: str, train: str, settings: dict, device: str, code: str,
         calibration: str, state: str | None = None) -> None:  # fmt: skip
    """Write ``calibration.json``; ``state`` has the run's own moments, where there are any."""
    prepare_backend()
    model = load_model(Path(weights).parent, choose_device(device))
    moments = None if state is None else load_tensors(state)[0]
    found = calibrate(model, read_tokens(train), moments, settings)
    named = {"suite": suite, "step": settings["start"], "assumed": "gradient"}
    write_json(calibration, named | found | {"settings": settings, "code": code})


if __name__ == "__main__":
    run(main, snakemake)
