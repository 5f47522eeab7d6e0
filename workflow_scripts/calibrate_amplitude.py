"""Derive OLI's amplitude from gradient statistics at the fork point (appendix B)."""

from flatminima.device import take_device
from flatminima.files import write_json
from flatminima.jobs import run
from flatminima.model import load_model, load_tensors
from flatminima.text.tokens import read_tokens
from flatminima.training.amplitude import calibrate


def main(
    suite: str,
    folder: str,
    train: str,
    settings: dict,
    device: str,
    threads: int,
    code: str,
    calibration: str,
    state: str | None = None,
) -> None:
    """Write ``calibration.json``.

    ``folder`` is the checkpoint of the fork point, ``state`` the run's training state there, if
    it is kept.
    """
    model = load_model(folder, take_device(device, threads))
    moments = None if state is None else load_tensors(state)[0]
    amplitudes = calibrate(model, read_tokens(train), moments, settings)
    write_json(
        calibration,
        {
            "suite": suite,
            "step": settings["start"],
            **amplitudes,
            "settings": settings,
            "code": code,
        },
    )


if __name__ == "__main__":
    run(main, snakemake)
