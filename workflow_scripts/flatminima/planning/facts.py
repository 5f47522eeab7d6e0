"""What tables, figures, notebooks and the ledger need to know of a suite."""

from flatminima.planning.variants import VariantPlan
from flatminima.quantizer_specs import printed_names, read_spec, read_specs


class FactsPlan(VariantPlan):
    """What tables, figures, notebooks and the ledger need to know of a suite."""

    @property
    def facts(self) -> dict:
        """What tables, figures and notebooks need to know of the suite."""
        facts = {
            "name": self.name,
            "label": self.section["label"],
            "is_paper_model": self.section["is_paper_model"],
            "spacing": self.spacing,
            "quantizers": self._printed_quantizers,
        }
        return facts if self.is_even else {**facts, "last": self.last}

    @property
    def index_files(self) -> dict[str, str]:
        """What the front page shows; forks and claims only where the suite has them."""
        names = ["audit.csv", "phases.json", "kurtosis.csv"]
        names += ["forks.csv"] if self.has_forks else []
        names += ["claims.csv"] if self.has_forks and self.is_even else []
        return {name.partition(".")[0]: f"{self.root}/{name}" for name in names}

    @property
    def _printed_quantizers(self) -> dict[str, str]:
        """Printed names of the quantizers in the suite's tables, by their configured names."""
        others = [self.section.get("mechanism", {}).get("replication", {}).get("low_bit")]
        found = {n: read_spec(self.quantizers[n]).label for n in others if n in self.quantizers}
        return found | printed_names(read_specs(self.probe["quantizers"]))

    @property
    def fork_facts(self) -> dict:
        """What a drawing of the forks needs besides: every schedule, at every update."""
        read = ("start", "steps", "probe_every", "schedules")
        fork = {key: self.section["fork"][key] for key in read}
        return {**self.facts, "training": self.schedule, "fork": fork, "last": self.last}

    @property
    def ledger_facts(self) -> dict:
        """What the ledger of claims needs to know of the suite."""
        read = ("start", "steps", "probe_every", "batch_size", "seeds", "schedules")
        return {
            **self.facts,
            **self.section["grid"],
            **self.schedule,
            "tokens_per_step": self.tokens_per_step,
            "fork": {key: self.section["fork"][key] for key in read},
        }
