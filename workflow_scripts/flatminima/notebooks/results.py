"""Read what the workflow has measured of one suite; used by the companion notebooks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml

from flatminima.errors import suggest
from flatminima.labels import role_labels
from flatminima.revisions.missing import missing_steps, missing_words
from flatminima.planning import SuitePlan
from flatminima.suites import read_library, resolve_suites

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Results:
    """The folder of one suite's results; ``suite`` is ``SuitePlan.facts``."""

    folder: Path
    suite: dict

    def path(self, name: str) -> Path:
        """Path of one result; ``FileNotFoundError`` with the command that makes it."""
        path = self.folder / name
        if not path.exists():
            target = f"results/{self.suite['name']}/{name}"
            raise FileNotFoundError(
                f"{target} does not exist; make it with: snakemake --cores 2 {target}"
            )
        return path

    def table(self, name: str) -> pd.DataFrame:
        """One CSV file."""
        return pd.read_csv(self.path(name))

    def phases(self) -> dict:
        """phases.json."""
        return json.loads(self.path("phases.json").read_text(encoding="utf-8"))

    def quantizers(self) -> dict[str, str]:
        """Printed name of each role."""
        return role_labels(self.table("audit.csv"))

    def notice(self) -> str:
        """What a reader must know about the suite before any number of it (Markdown)."""
        lost = missing_words(missing_steps(self.table("suite.csv")))
        ending = f" Nothing below counts revisions that could not be had ({lost})." if lost else ""
        if self.suite["is_paper_model"]:
            return f"**Suite: {self.suite['label']}**, the paper's own model." + ending
        return (
            f"**Suite: {self.suite['label']}.** Every number below is about this suite. It is an "
            "experiment of its own and says nothing about Pythia-160m, the paper's model; where "
            "the paper's numbers appear, they are not comparable with the suite's." + ending
        )


def paper_table(name: str) -> pd.DataFrame:
    """A table of the paper's printed numbers, such as ``table1``."""
    return pd.read_csv(ROOT / "resources" / "paper" / f"{name}.csv")


def open_results(environment: Mapping[str, str]) -> Results:
    """The results meant by ``environment``.

    ``SUITE`` is the suite's name (default: mini), ``RESULTS`` the folder of all results
    (default: results in the repository), ``SUITE_SETTINGS`` the facts of the suite as JSON
    (default: from the configuration). Raises ``ValueError`` for a suite that is not known.
    """
    name = environment.get("SUITE", "mini")
    folder = Path(environment.get("RESULTS", ROOT / "results")) / name
    if "SUITE_SETTINGS" in environment:
        return Results(folder, json.loads(environment["SUITE_SETTINGS"]))
    config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    suites = resolve_suites(config["suites"], read_library(ROOT / "resources"))
    if name not in suites:
        raise ValueError(f"SUITE {name} is not known; {suggest(name, list(suites))}")
    return Results(folder, SuitePlan(name, suites[name], config["quantizers"]).facts)
