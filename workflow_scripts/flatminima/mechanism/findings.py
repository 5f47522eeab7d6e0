"""The answers in numbers: findings.csv, which notebook and ledger read.

Every finding is a name, a value with its 95 % interval, the number of units behind it and
what they are. ``best`` in a name means the checkpoint of FP32 convergence (phases.json),
or the nearest one that was measured.
"""

from collections.abc import Callable, Iterable, Mapping

import pandas as pd

from flatminima.mechanism import finding_losses, finding_weights

COLUMNS = ["finding", "value", "low", "high", "n", "unit", "about"]
Maker = Callable[[pd.DataFrame], Iterable[tuple]]


def findings(tables: Mapping[str, pd.DataFrame], phases: Mapping, *, spacing: int) -> pd.DataFrame:
    """All findings of the measurements that are there (columns ``COLUMNS``).

    ``tables`` has audit and any of factors, layers, sensitivity, curvature, drift,
    displacement, phase_flips, activations and replication, as under results/{suite}.
    """
    best = phases["convergence"]["step"]
    start, audit = phases["rapid_learning_end"]["step"], tables["audit"]
    losses, weights = finding_losses, finding_weights
    makers: dict[str, Maker] = {
        "factors": lambda t: losses.factorial_findings(t),
        "layers": lambda t: losses.layer_findings(t, best),
        "sensitivity": lambda t: losses.sensitivity_findings(t, best, start),
        "curvature": lambda t: (
            *losses.curvature_findings(t, best),
            *losses.curvature_relation(t, audit, start),
        ),
        "drift": lambda t: weights.drift_findings(t, best),
        "displacement": lambda t: weights.displacement_findings(t, best, spacing),
        "phase_flips": weights.phase_findings,
        "activations": lambda t: weights.activation_findings(t, audit, best, start),
        "replication": weights.replication_findings,
    }
    rows = [
        {"finding": name, "value": v.value, "low": v.low, "high": v.high, "n": v.n,
         "unit": v.unit, "about": about}
        for source, make in makers.items()
        if source in tables and len(tables[source])
        for name, v, about in make(tables[source])
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)
