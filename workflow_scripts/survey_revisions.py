"""Survey a range of a hub suite's revisions: fetch each, measure it, delete it."""

from flatminima.files import write_json
from flatminima.jobs import log, logged
from flatminima.revisions.finished_parts import FinishedParts, fingerprint
from flatminima.revisions.origins import fetch_revision
from flatminima.revisions.surveying import Survey
from flatminima.scoring import Prober


def main(*, repo: str, revisions: dict, validation: str, probe: dict, layers: str,
         tokens_per_step: int, threads: int, most_on_disk: int, unfinished: str, code: str,
         outputs: dict) -> None:  # fmt: skip
    """Write what the rules for kept checkpoints write; ``revisions`` maps steps to hub names.

    Finished revisions stay in ``unfinished`` until all are, so that a kill costs one.
    """
    prober = Prober(validation, probe, threads)
    made_by = {**prober.made_by, "code": code}
    settings = {"repo": repo, "layers": layers, "tokens_per_step": tokens_per_step}
    finished = FinishedParts(unfinished, fingerprint(**made_by, **settings))
    survey = Survey(prober, layers, tokens_per_step, finished)
    missing = survey.run(
        list(revisions), lambda step, folder: fetch_revision(repo, revisions[step], folder),
        most_on_disk,
    )  # fmt: skip
    survey.write(list(revisions), missing, outputs, probe["resamples"])
    write_json(outputs["provenance"], made_by)
    finished.remove()
    log(f"{len(revisions) - len(missing)} of {len(revisions)} revisions surveyed")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            validation=snakemake.input.validation,
            threads=snakemake.threads,
            most_on_disk=snakemake.resources.on_disk,
            outputs=dict(snakemake.output.items()),
            **snakemake.params,
        )
