"""Train one fork of a suite and probe it on the way."""

from pathlib import Path

from workflow_scripts.lib.checkpoints import load_model
from workflow_scripts.lib.files import file_sha256, write_table
from workflow_scripts.lib.forking import Fork
from workflow_scripts.lib.logs import logged
from workflow_scripts.lib.probing import Prober
from workflow_scripts.lib.provenance import write_json
from workflow_scripts.lib.tokens import read_tokens
from workflow_scripts.lib.workspace import Workspace, fingerprint


def main(*, suite: str, schedule: str, seed: int, inputs: dict, outputs: dict, settings: dict,
         probe: dict, threads: int, workspace: str, save_every: int,
         code: str) -> None:  # fmt: skip
    """Write a row per probe and quantizer, the scores of each sequence, and what made them."""
    fork, prober = Fork(seed=seed, **settings), Prober(inputs["validation"], probe, threads)
    hashes = {name: file_sha256(path) for name, path in inputs.items()}
    made_by = {**prober.made_by, **settings, "seed": seed, "inputs": hashes, "code": code}
    with Workspace(workspace, fingerprint(**made_by), save_every) as unfinished:
        model = load_model(Path(inputs["weights"]).parent, prober.device)
        tokens, state = read_tokens(inputs["train"]), inputs.get("state")
        scores, losses = fork.run(model, tokens, prober, initial_state=state, workspace=unfinished)
        table = fork.trajectory(
            scores, losses, suite=suite, name=schedule,
            sequence_length=tokens.shape[1], resamples=probe["resamples"],
        )  # fmt: skip
        write_table(outputs["table"], table)
        write_table(outputs["sequences"], scores)
        write_json(outputs["provenance"], made_by)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            suite=snakemake.wildcards.suite,
            seed=int(snakemake.wildcards.seed),
            inputs=dict(snakemake.input.items()),
            outputs=dict(snakemake.output.items()),
            threads=snakemake.threads,
            **snakemake.params,
        )
