"""Run under torch.distributed.run by test_callback: one monitor on every rank."""

import json
import sys
from pathlib import Path

import torch

from flatminima.model import build_model
from flatminima.tools.callback import ConvergenceCallback
from tests.conftest import TINY, TINY_VOCABULARY
from tests.test_callback import SETTINGS, trainer_of


def main(folder: Path) -> None:
    model = build_model(TINY, TINY_VOCABULARY, seed=0)
    callback = ConvergenceCallback(SETTINGS, actions=("save", "probe", "stop"))
    trainer = trainer_of(model, folder / "run", callback, ddp_backend="gloo")
    rank = torch.distributed.get_rank()
    fed = ConvergenceCallback(SETTINGS)
    for step in (1, 2, 3, 4):
        trainer.state.global_step = step
        loss = 3.0 if rank == 0 else [9.0, 7.0, float("nan"), 1.0][step - 1]
        fed.on_evaluate(trainer.args, trainer.state, trainer.control, metrics={"eval_loss": loss})
    trainer.state.global_step = 0
    trainer.train()
    found = {"fed": fed.saved, "trained": callback.saved, "stopped_at": trainer.state.global_step}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
