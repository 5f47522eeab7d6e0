"""Follow the codes through single phases of OLI, and through the baseline over the same steps."""

from pathlib import Path

from flatminima.device import take_device
from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.phase_flips import trace_phases
from flatminima.model import load_model
from flatminima.quantizer_specs import read_spec
from flatminima.text.tokens import read_tokens


def main(
    *,
    folder: str,
    train: str,
    settings: dict,
    quantizer: dict,
    threads: int,
    table: str,
    state: str | None = None,
) -> None:
    """Write a row per schedule, seed and phase.

    ``folder`` is the checkpoint of the fork point, ``state`` the run's training state there, if
    it is restored.
    """
    device = take_device(settings["device"], threads)
    rows = trace_phases(
        lambda: load_model(folder, device),
        read_tokens(train),
        read_spec(quantizer),
        settings,
        state=None if state is None else Path(state),
    )
    write_table(table, rows)


if __name__ == "__main__":
    run(main, snakemake)
