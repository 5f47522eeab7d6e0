"""The fork experiment (sections 5.1 and 5.2): summaries, and each condition against the control."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from workflow_scripts.lib.fork_conditions import by_seed, conditions, probe_table
from workflow_scripts.lib.statistics_rows import PROBES_DEPEND, Row, join_notes
from workflow_scripts.lib.two_sample_tests import exact_tests, mean, standard_deviation, t_tests


def summary_rows(condition: str, probes: pd.DataFrame) -> Iterator[Row]:
    """Mean and standard deviation over seeds, and over all probes pooled."""
    last = probes[probes["step"] == probes["step"].max()]
    phases = sorted(set(last["update_phase"]) - {""})
    final = f"last probe at step {last['step'].iloc[0]}" if len(last) else "no such probe"
    final += f", which is a {' and '.join(phases)} probe" if phases else ""
    for column in ("gap_pct", "fp32_ppl", "low_bit_ppl"):
        for how in ("final", "mean"):
            sample = by_seed(probes, column, how).to_numpy()
            each = len(probes) // max(1, len(sample))
            note = final if how == "final" else f"mean over {each} probes of each seed"
            yield _summary(condition, "seed", f"{how}_{column}", sample, note)
    yield _summary(condition, "probe", "gap_pct", probes["gap_pct"].to_numpy(), "all seeds pooled")


def _summary(condition: str, unit: str, measure: str, sample: np.ndarray, note: str) -> Row:
    return Row(
        "summary", condition, unit, measure, "mean", value=mean(sample), n_a=len(sample),
        mean_a=mean(sample), sd_a=standard_deviation(sample), note=note,
    )  # fmt: skip


def seed_rows(comparison: str, probes: pd.DataFrame, baseline: pd.DataFrame) -> Iterator[Row]:
    """Compare one condition with the baseline, the seed being the unit."""
    matching = baseline[baseline["step"].isin(probes["step"])]
    note = "baseline at the same steps" if len(matching) < len(baseline) else ""
    for how in ("final", "mean"):
        a, b = by_seed(probes, "gap_pct", how), by_seed(matching, "gap_pct", how)
        where = {"comparison": comparison, "unit": "seed", "measure": f"{how}_gap_pct"}
        yield from exact_tests(a.to_numpy(), b.to_numpy(), where, note)
        yield from t_tests(a.to_numpy(), b.to_numpy(), where, note)
        difference = (a - b).dropna().to_numpy()
        yield Row(
            "same-seed sign", **where, statistic="seeds lower", value=int((difference < 0).sum()),
            n_a=len(difference), n_b=len(difference), difference=mean(difference),
            note=join_notes(
                note, f"of {len(difference)} seeds; a seed fixes the order of the data"
            ),
        )  # fmt: skip


def pooled_rows(comparison: str, probes: pd.DataFrame, baseline: pd.DataFrame) -> Iterator[Row]:
    """Section 5.2's t-test: cool probes against the baseline's, all seeds pooled."""
    matching = baseline[baseline["step"].isin(probes["step"])]
    for label, others in (("matching steps", matching), ("all probes", baseline)):
        where = {"comparison": f"{comparison} ({label})", "unit": "probe", "measure": "gap_pct"}
        a, b = probes["gap_pct"].to_numpy(), others["gap_pct"].to_numpy()
        yield from t_tests(a, b, where, PROBES_DEPEND)


def fork_rows(forks: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """Everything about the fork experiment; ``baseline`` is the control's schedule name."""
    groups = conditions(probe_table(forks))
    for name, probes in groups.items():
        yield from summary_rows(name, probes)
    control = groups.pop(baseline, next(iter(groups.values()), pd.DataFrame()).iloc[:0])
    for name, probes in groups.items():
        comparison = f"{name} v {baseline}"
        yield from seed_rows(comparison, probes, control)
        if name.endswith(" cool"):
            yield from pooled_rows(comparison, probes, control)
