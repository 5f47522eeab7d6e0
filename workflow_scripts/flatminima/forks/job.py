"""One fork from its inputs to its files, in this process or in several that share each batch.

As a program (``python -m torch.distributed.run … -m flatminima.forks.job job.json``)
it is one of several processes; ``job.json`` holds the arguments of ``run``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from flatminima.files import file_sha256, write_json, write_table
from flatminima.forks.forking import Fork
from flatminima.forks.settings import ForkSettings
from flatminima.model import load_model
from flatminima.scoring import Prober
from flatminima.text.tokens import read_tokens
from flatminima.training import distributed
from flatminima.training.gradients import read_compute
from flatminima.training.workspace import Workspace, fingerprint


def start(**job: object) -> None:
    """Run a fork in as many processes as its settings ask for; arguments as of ``run``."""
    processes = read_compute(job["settings"].get("compute", {})).processes
    if processes == 1:
        run(**job)
        return
    path = Path(f"{job['workspace']}.job.json")
    try:
        distributed.launch("flatminima.forks.job", job, path, processes=processes)
    finally:
        path.unlink(missing_ok=True)


def run(
    *,
    seed: int,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    settings: Mapping,
    probe: Mapping,
    threads: int,
    workspace: str,
    save_every: int,
    code: str,
) -> None:
    """Write the scores of each sequence, the loss of each update, and what made them.

    ``inputs`` has weights, train, validation and, where Adam's moments are restored,
    state; ``outputs`` sequences, losses and provenance.
    """
    compute = read_compute(settings.get("compute", {}))
    fork = Fork(ForkSettings(**settings), seed)
    prober = Prober(inputs["validation"], probe, max(1, threads // compute.processes))
    hashes = {name: file_sha256(path) for name, path in inputs.items()}
    made_by = {**prober.made_by, **settings, "seed": seed, "inputs": hashes, "code": code}
    with distributed.process_group(prober.device):
        unfinished = _open_workspace(workspace, fingerprint(**made_by), save_every)
        # The first process saves its state when asked to stop; the others see it through.
        with unfinished if distributed.is_first() else distributed.undisturbed():
            model = load_model(Path(inputs["weights"]).parent, prober.device)
            tokens, state = read_tokens(inputs["train"]), inputs.get("state")
            losses = fork.run(model, tokens, prober, initial_state=state, workspace=unfinished)
            if distributed.is_first():
                write_table(outputs["losses"], losses)
                write_table(outputs["sequences"], fork.scores(unfinished))
                write_json(outputs["provenance"], made_by)


def _open_workspace(folder: str, identity: str, save_every: int) -> Workspace:
    """The job's folder, opened by the first process before the others: it may clear it."""
    opened = Workspace(folder, identity, save_every) if distributed.is_first() else None
    distributed.wait_for_all()
    opened = opened or Workspace(folder, identity, save_every)
    distributed.wait_for_all()
    return opened


if __name__ == "__main__":
    run(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
