"""Score the candidates for the embedded suite, the best first."""

from pathlib import Path

import pandas as pd

from flatminima.jobs import log, logged
from flatminima.training.search import criterion


def main(*, curves: list[str], table: str) -> None:
    """Write one row per candidate in the order of the criterion."""
    rows = [{"candidate": Path(path).stem, **criterion(pd.read_csv(path))} for path in curves]
    ranked = pd.DataFrame(rows).sort_values("score", ignore_index=True)
    ranked.to_csv(table, index=False, float_format="%.6g")
    log(f"smallest score: {ranked.loc[0, 'candidate']}")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(curves=snakemake.input.curves, table=snakemake.output.table)
