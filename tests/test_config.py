"""A mistake in the configuration is one line that names the key, the value and what is valid."""

import copy
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flatminima.config.checks import check_config, find_suite
from flatminima.errors import ConfigError
from flatminima.planning import RANGED, SuitePlan, final_outputs
from tests.workflow import ROOT

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())
SCHEMA = yaml.safe_load((ROOT / "rules/schemas/config.schema.yaml").read_text())
TINY = yaml.safe_load((ROOT / "tests/config/tiny.yaml").read_text())


DELETE = object()


def changed(path: str, value) -> dict:
    """The committed configuration with one key set to ``value``, or deleted."""
    return changed_at(path.split("."), value)


def changed_at(path, value) -> dict:
    config = copy.deepcopy(CONFIG)
    *parents, last = path
    section = config
    for part in parents:
        section = section[part]
    if value is DELETE:
        del section[last]
    else:
        section[last] = value
    return config


def test_the_committed_configurations_are_valid():
    check_config(CONFIG, SCHEMA)
    merged = copy.deepcopy(CONFIG)
    for key in ("suites", "quantizers"):
        merged[key] |= TINY[key]
    check_config(merged | {"suite": "tiny"}, SCHEMA)


MISTAKES = [
    ("suite", "minni", "suite: 'minni' is not known; did you mean mini? valid: mini, pythia-160m"),
    ("sute", "mini", "sute is not known; did you mean suite?"),
    ("suites.mini.sead", 1, "suites.mini.sead is not known"),
    ("suites.mini.probe.low_bits", 1, "suites.mini.probe.low_bits is not known; did you mean low"),
    ("suites.mini.fork.schedules.oli.ampltude", 2, "did you mean amplitude?"),
    ("suites.mini.fork.schedules.sgdr.kind", "sgd", "'sgd' is not valid; did you mean sgdr?"),
    ("suites.mini.probe.low_bit", "int4_g46", "'int4_g46' is not known; did you mean int4_g64?"),
    ("suites.mini.probe.low_bit", "int4_g128", "group_size 128, larger than"),
    ("suites.mini.fork.start", 2801, "step 2801 is not on the grid; nearest: 2800 and 2840"),
    ("suites.mini.fork.start", -1, "suites.mini.fork.start: -1 is less than the minimum of 0"),
    ("suites.mini.fork.probe_every", 41, "41 does not divide"),
    ("suites.mini.fork.schedules.cosine", DELETE, "lacks cosine"),
    ("suites.mini.fork.schedules.cosine", {"kind": "sgdr", "period": 400}, "'sgdr' is not valid"),
    ("suites.mini.fork.phase_resolved.cycles", 81, "at most fork.steps 1200"),
    ("suites.mini.text.packages", ["numpy", "nosuchpackage"], "'nosuchpackage' is not installed"),
    ("suites.mini.training.jobs_end_at", [2800], "must rise and end at the last step 5720"),
    ("suites.mini.training.jobs_end_at", [2801, 5720], "step 2801 is not on the grid"),
    ("suites.mini.training.warmup_steps", 5720, "not below the suite's last step 5720"),
    ("suites.mini.training.lr_min", 0.1, "above lr_max 0.01"),
    ("suites.mini.training.lr_max", "fast", "'fast' is not a finite number"),
    ("suites.mini.grid.last", 5721, "must be a multiple of spacing 40"),
    ("suites.mini.repo", "some/model", "repo goes with source hub"),
    ("suites.mini.architecture.num_heads", 5, "5 does not divide hidden_size 64"),
    ("suites.mini.batches.train.length", 65, "65 is longer than architecture.max_length 64"),
    ("suites.pythia-160m.repo", DELETE, "repo goes with source hub"),
    ("suites.mini.keep_checkpoints", True, "keep_checkpoints goes with source hub"),
    ("suites.mini.max_on_disk", 2, "max_on_disk goes with source hub"),
    ("suites.pythia-160m.max_on_disk", 0, "max_on_disk: 0 is less than the minimum of 1"),
    ("suites.pythia-160m.integrity.duplicate", "wran", "did you mean warn"),
    ("suites.mini.integrity", {"duplicates": "warn"}, "did you mean duplicate?"),
    ("quantizers.int4_g64.bits", 1, "1 is less than the minimum of 2"),
    ("quantizers.int4_g64.granularity", "grup", "did you mean group?"),
    ("quantizers.int8_channel.group_size", 64, "group_size 64 goes with granularity group only"),
    ("quantizers.int4_g64.group_size", DELETE, "int4_g64 lacks group_size"),
    ("quantizers.fp32", {"bits": 8, "granularity": "tensor", "symmetric": True}, "taken by full"),
    ("suites.paper", CONFIG["suites"]["mini"], "taken by the printed tables"),
    ("suites.no/slash", CONFIG["suites"]["mini"], "'no/slash' does not match"),
    ("suites.mini.probe.high_bit", "int4_g64", "low_bit and high_bit are both 'int4_g64'"),
    ("suites.mini.probe", {**CONFIG["suites"]["mini"]["probe"], "low_bit": "int8_channel",
                           "high_bit": "int4_g64"}, "has 8 bits, high_bit 'int4_g64' 4"),
    ("suites.mini.source", "hubb", "'hubb' is not valid; did you mean hub? valid: pretrain, hub"),
    ("suites.mini.tokenizer", {"repo": "a/b"}, "has repo; valid with source pretrain: vocab_size"),
    ("suites.mini.tokenizer", {}, "has no key; valid with source pretrain: vocab_size"),
    ("suites.mini.tokenizer.repo", "a/b", "has vocab_size, repo; valid with source pretrain"),
    ("suites.mini.tokenizer.vocab_size", 256, "256 is less than the minimum of 257"),
    ("suites.pythia-160m.tokenizer", {"vocab_size": 512}, "valid with source hub: repo"),
    ("suites.mini.tokenizer.revision", "main", "vocab_size, revision; valid with source pretrain"),
    ("suites.pythia-160m.training.jobs_end_at", [143000], "goes with source pretrain only"),
    ("suites.mini.training.jobs_end_at", DELETE, "lacks jobs_end_at, needed with source pretrain"),
    ("suites.mini.training.jobs_end_at", [5720, 2800], "[5720, 2800] must rise"),
    ("suites.mini.training.jobs_end_at", [2800, 2800, 5720], "[2800, 2800, 5720] has non-unique"),
    ("suites.mini.training.schedule", "cosin", "did you mean cosine? valid: cosine, cosine_neox"),
    ("suites.mini.text.packages", ["os"], "'os' is not installed"),  # a single file
    ("suites.mini.text.packages", ["json"], "'json' belongs to no installed distribution"),
    ("suites.mini.text.packages", ["__main__"], "'__main__' is not installed"),
    ("suites.mini.text.packages", ["tests"], "'tests' belongs to no installed distribution"),
    ("suites.mini.text.packages", ["../numpy"], "does not match"),
    ("suites.mini.text.source", "package", "'package' is not valid; did you mean packages?"),
    ("suites.mini.text.source", "hub", "'hub' is not valid; valid: packages, files"),
    ("suites.pythia-160m.text.train", [], "text.train: [] should be non-empty"),
    ("suites.pythia-160m.text.train", [{"path": "a.pdf"}], "train.0.path: 'a.pdf' has no known"),
    ("suites.pythia-160m.text.train", [{"path": "a.zst"}], "train.0.path: 'a.zst' has no known"),
    ("suites.pythia-160m.text.train", [{"path": "a.parquet.zst"}], "has no known ending; valid:"),
    ("suites.pythia-160m.text.train", [{"path": "a*.txt"}], "one of the characters * ? [ ]"),
    ("suites.pythia-160m.text.train", [{"repo": "a/b"}], "train.0: has repo; valid: path, or repo"),
    ("suites.pythia-160m.text.train", [{"path": "a.txt", "file": "b"}], "has file, path; valid"),
    ("suites.pythia-160m.text.train", [{"path": "a.txt", "revision": "b"}], "goes with repo and"),
    ("suites.pythia-160m.text.train", [{"path": "a.txt", "fild": "b"}], "did you mean field?"),
    ("suites.pythia-160m.batches.train.sha256", "abc", "'abc' does not match"),
    ("suites.pythia-160m.batches.train", {"sequences": 1, "length": 9, "document_start": True,
                                          "longest_document": 8}, "8 is below length 9"),
    ("suites.pythia-160m.text.train", DELETE, "text: lacks train, needed for batches.train"),
    ("suites.mini.tokenizer.end_of_text", "</s>", "valid with source pretrain: vocab_size"),
    ("suites.mini.fork.seeds", [0, 0], "[0, 0] has non-unique elements"),
    ("suites.mini.fork.seeds", [-1], "fork.seeds.0: -1 is less than the minimum of 0"),
    ("suites.mini.fork.seeds", [True], "fork.seeds.0: True is not a whole number"),
    ("suites.mini.fork.schedules.oli.period", 400, "oli.period is not known"),
    ("suites.mini.fork.schedules.oli.kind", DELETE, "oli lacks kind"),
    ("suites.mini.fork.schedules.sgdr.period", 0, "0 is less than the minimum of 1"),
    ("suites.mini.grid.powers_of_two", 10.0, "10.0 is not a whole number"),
    ("suites.mini.grid.powers_of_two", 10**9, "is past 5720"),
    ("suites.mini.grid.last", 10**15, "25000000000000 revisions; at most 100000"),
    ("suites.mini.training.lr_max", math.nan, "nan is not a finite number"),
    ("suites.mini.training.lr_max", math.inf, "inf is not a finite number"),
    ("suites.mini.training.lr_max", 10**400, "is not a finite number"),
    ("suites.mini.training.eps", "1e-8", "'1e-8' is not a finite number"),  # YAML needs 1.0e-8
    ("suites.mini.text.validation_fraction", 1, "1 is greater than or equal to the maximum of 1"),
    ("suites.mini.label", "", "'' should be non-empty"),
    ("suites.mini.is_paper_model", "no", "'no' is not true or false"),
    ("suites.mini.threads", 0, "0 is less than the minimum of 1"),
    ("suites.mini.device", "gpu", "'gpu' is not valid; "),
    ("suites.mini", None, "suites.mini: None is not a mapping"),
    ("suites.mini.is_paper_model", True, "is_paper_model is true for mini, pythia-160m; it must"),
    ("suites.mini.pattern", "runs/{step}", "pattern goes with source local, and only with it"),
    ("suites.pythia-160m.source", "local", "repo goes with source hub, and only with it"),
    ("suites.mini.grid", "discover", "discover goes with source hub or local"),
    ("suites.mini.grid", "discovr", "'discovr' is not valid; did you mean discover?"),
    ("suites.mini.grid", {"steps": [0, 40]}, "steps goes with source hub or local"),
    ("suites.pythia-160m.grid", {"steps": [9, 80], "last": 10}, "10 is before step 80"),
    ("suites.pythia-160m.grid", {"steps": []}, "suites.pythia-160m.grid.steps: [] "),
    ("suites.pythia-160m.grid", {"steps": [1, 1]}, "[1, 1] has non-unique elements"),
    ("suites.pythia-160m.grid", {"steps": [0, 90000]}, "step 70000 is not on the grid"),
    ("suites.pythia-160m.revision", "step(?P<step>[0-9]+", "is no regular expression"),
    ("suites.pythia-160m.revision", "step[0-9]+", "has no group (?P<step>...) for the step"),
    ("suites.mini.revision", "step(?P<step>[0-9]+)", "revision goes with source hub only"),
    ("suites.mini.architecture.family", "llama", "family goes with source hub or local"),
    ("suites.mini.architecture", DELETE, "lacks architecture, needed with source pretrain"),
    ("suites.mini.training", DELETE, "lacks training, needed with source pretrain"),
    ("suites.pythia-160m.training", DELETE, "lacks training, needed for its forks"),
    ("suites.pythia-160m.batches.train", DELETE, "lacks batches.train, needed for its forks"),
    ("suites.pythia-160m.tokens_per_step", 0, "0 is less than the minimum of 1"),
    ("suites.mini.fork.optimizer_state", "rewarmed", "rewarm_steps goes with optimizer_state rew"),
    ("suites.mini.fork.rewarm_steps", 9, "always with it; optimizer_state is fresh"),
    ("suites.pythia-160m.fork.optimizer_state", "restored",
     "a suite with source hub does not have; valid: fresh, rewarmed"),
    ("suites.mini.compute", {"precision": "bf17"}, "'bf17' is not valid; did you mean bf16?"),
    ("suites.mini.compute", {"processes": 3}, "compute.processes: 3 does not divide fork.batch_s"),
    ("suites.mini.compute", {"micro_batch": 0}, "0 is less than the minimum of 1"),
    ("suites.mini.fork.pilot.length", 12, "12 must divide batches.train.length 64 and be shorter"),
    ("suites.mini.fork.pilot.length", 64, "64 must divide batches.train.length 64 and be shorter"),
    ("suites.mini.fork.pilot.probe_every", 7, "7 does not divide pilot.steps 80"),
    ("suites.mini.fork.amplitudes", [0.0], "0.0 is less than or equal to the minimum of 0"),
    ("suites.mini.fork.schedules", {"cosine": {"kind": "cosine"}}, "needs a schedule of kind oli"),
    ("suites.mini.fork.rivals.sgdr", {"kind": "linear"}, "rivals.sgdr: this name is taken"),
    ("suites.mini.fork.rivals.oli_x2_p15", {"kind": "linear"}, "oli_x2_p15: this name is taken"),
    ("suites.mini.fork.rivals.wsd", {"kind": "wsd"}, "rivals.wsd lacks decay_steps, needed with"),
    ("suites.mini.fork.rivals.wsd.decay_steps", 1201, "1201 is more than fork.steps 1200"),
    ("suites.mini.fork.rivals.wsd.window", 3, "window does not go with kind wsd; valid with it: d"),
    ("suites.mini.fork.rivals.run.sam_radius", 1.0, "sam_radius does not go with kind average; va"),
    ("suites.mini.fork.rivals.run.window", 200, "up to step 4000 are more than there are; valid:"),
    ("suites.mini.fork.rivals.ema.kind", "mean", "'mean' is not valid; valid: cosine, sgdr"),
    ("suites.mini.fork.steps", 1240 - 5, "does not divide"),
    ("suites.pythia-160m", DELETE, "is_paper_model is true for no suite; it must be true for"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "line"), MISTAKES)
def test_a_mistake_is_one_line(path, value, line):
    with pytest.raises(ConfigError) as error:
        check_config(changed(path, value), SCHEMA)
    assert line in str(error.value)
    assert path.split(".")[0] in str(error.value)
    assert "\n" not in str(error.value)


def test_restored_moments_need_a_state_at_the_fork():
    config = changed("suites.mini.fork.optimizer_state", "restored")
    check_config(config, SCHEMA)
    config["suites"]["mini"]["training"]["jobs_end_at"] = [5720]
    with pytest.raises(ConfigError, match="restored needs a training state at step 2800"):
        check_config(config, SCHEMA)


def test_an_unknown_suite_names_the_known():
    with pytest.raises(ConfigError, match="'foo' is not known; valid: mini, pythia-160m"):
        find_suite(CONFIG, "foo")


def paths(section, prefix=()):
    if isinstance(section, dict):
        for key, value in section.items():
            yield (*prefix, key)
            yield from paths(value, (*prefix, key))


def changed_at_value(path):
    value = CONFIG
    for part in path:
        value = value[part]
    return value


PATHS = sorted(paths(CONFIG))
MAPPINGS = [(), *(p for p in PATHS if isinstance(changed_at_value(p), dict))]
LEAVES = [p for p in PATHS if not isinstance(changed_at_value(p), dict)]


@pytest.mark.parametrize("path", MAPPINGS, ids=".".join)
def test_a_key_that_is_not_known_is_refused_at_every_level(path):
    key = ".".join((*path, "nonsense"))
    with pytest.raises(ConfigError) as error:
        check_config(changed(key, 1), SCHEMA)
    line = str(error.value)
    # Where keys are names, the value is what is wrong.
    assert line.startswith((f"config key {key} is not known; ", f"config key {key}: 1 is not a"))


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_a_value_of_another_kind_is_refused_and_named(path):
    with pytest.raises(ConfigError) as error:
        check_config(changed_at(path, {"a": [1]}), SCHEMA)
    line = str(error.value)
    assert line.startswith(f"config key {'.'.join(path)}: {{'a': [1]}} is not ")


OPTIONAL = {
    "suites.pythia-160m.architecture.vocab_size",
    *(f"quantizers.{name}.layers" for name in CONFIG["quantizers"]),
    # A measurement that is left out is not made.
    *(f"suites.{name}.mechanism.{measure}" for name, suite in CONFIG["suites"].items()
      for measure in suite.get("mechanism", {}) if measure != "batch_size"),
}  # fmt: skip


# Of forks beyond the paper's: the sections themselves, each rival, and what it may change.
LEFT_OUT = {"pilot", "amplitudes", "rivals", "rival_seeds", "sam_radius", "precision"}


def optional(path) -> bool:
    of_rival = path[3:4] == ("rivals",) and (len(path) == 5 or path[5:] == ("weight_decay",))
    named = ".".join(path) in OPTIONAL or path[-1] in LEFT_OUT or "integrity" in path[2:3]
    return named or of_rival


@pytest.mark.parametrize("path", [p for p in PATHS if len(p) > 3 or p[0] != "suites"], ids=".".join)
def test_a_missing_key_is_named(path):
    config = changed_at(path, DELETE)
    if optional(path) or path[-2:] == ("schedules", "sgdr"):
        return check_config(config, SCHEMA)
    with pytest.raises(ConfigError) as error:
        check_config(config, SCHEMA)
    assert path[-1] in str(error.value) and "\n" not in str(error.value)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.floats(allow_subnormal=False),  # another test of this process may flush them to zero
    st.text(max_size=8),
    st.lists(st.integers(-2, 6000), max_size=3),
    st.dictionaries(st.text(max_size=4), st.none(), max_size=2),
)


def plan_everything(config) -> None:
    """What the rules ask of every suite: nothing of it may fail once the check has passed."""
    for name, section in config["suites"].items():
        plan = SuitePlan(name, section, config["quantizers"])
        final_outputs(plan, tables=["t"], figures=["f"], notebooks={"n": ["audit.csv"]})
        assert plan.pretraining_jobs or section["source"] == "hub"
        ranges = f"step{plan.steps[0]}-step{plan.steps[-1]}"
        for what in ("steps_in", "checkpoint_files", "weights", "commits", "folders"):
            getattr(plan, what)(ranges)
        assert all(path.startswith(plan.root) for path in plan.extended_outputs)
        for measure in set(RANGED) & set(section.get("mechanism", {})):
            assert plan.measured_steps(measure) and plan.measure_tables(measure)
        for schedule, definition in section.get("fork", {"schedules": {}})["schedules"].items():
            plan.fork_inputs(schedule)
            plan.fork_settings(schedule)
            if definition["kind"] == "oli":
                plan.cycle_settings(schedule, "bump")
        fork = section.get("fork", {})
        for key, what in (("pilot", "pilot_tables"), ("amplitudes", "amplitude_tables"),
                          ("rivals", "rival_tables")):  # fmt: skip
            for path in getattr(plan, what) if fork.get(key) else []:
                condition = path.rsplit("/", 1)[1].removesuffix(".csv").rpartition("-seed")[0]
                if "/variants/" in path:
                    assert plan.variant_settings(condition) and plan.variant_inputs(condition)
                else:
                    name = path.rsplit("/", 1)[1].removesuffix(".csv")
                    assert set(plan.average_steps(name)) <= set(plan.steps)
        assert bool(plan.extended_forks) == plan.has_forks
        assert plan.has_forks == ("fork" in section)
        of_forks = (
            ("ledger_facts", "forks", "cycles", "fork_probe", "fork_gpus") if plan.has_forks else ()
        )
        for what in (*of_forks, "probe", "text", "batches", "schedule", "facts", "tokens_per_step",
                     "probe_tables", "probe_sequences", "kurtosis_tables", "revision_tables",
                     "kurtosis_layers", "phase_resamples", "gpus", "threads"):  # fmt: skip
            getattr(plan, what)
        if section["source"] == "hub":
            assert plan.repo("0") and plan.tokenizer_source
        else:
            assert plan.vocab_size


KEYS = st.one_of(
    st.integers(), st.none(), st.text(max_size=6), st.sampled_from([p[-1] for p in PATHS])
)
ACTIONS = ["delete", "set", "rename", "add"]
CHANGES = st.lists(
    st.tuples(st.sampled_from(PATHS), st.sampled_from(ACTIONS), KEYS, ODD), min_size=1, max_size=3
)


@settings(max_examples=600)
@given(CHANGES)
def test_whatever_is_changed_is_accepted_or_refused_in_one_line(changes):
    """Accepted means that everything can be planned; refused means a line and no traceback."""
    config = copy.deepcopy(CONFIG)
    for path, action, key, odd in changes:
        section = config
        for part in path[:-1]:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict) or path[-1] not in section:
            continue
        if action in ("delete", "rename"):
            value = section.pop(path[-1])
        if action in ("set", "add"):
            section[path[-1] if action == "set" else key] = odd
        if action == "rename":
            section[key] = value
    try:
        check_config(config, SCHEMA)
    except ConfigError as error:
        assert "\n" not in str(error) and str(error).startswith("config key")
        assert len(str(error)) < 1000
    else:
        plan_everything(config)


def test_the_committed_suites_can_be_planned():
    plan_everything(CONFIG)


def closed(schema, where="top"):
    if isinstance(schema, dict):
        if "properties" in schema and "if" not in schema and "allOf" not in schema:
            opened = where.endswith((".if", ".properties", ".then"))
            assert opened or schema.get("additionalProperties") is not None, where
        for key, part in schema.items():
            closed(part, f"{where}.{key}")
    elif isinstance(schema, list):
        for part in schema:
            closed(part, where)


def test_the_schema_is_closed_and_describes_every_key():
    closed(SCHEMA)
    undescribed = [
        f"{name}.{key}"
        for name, part in SCHEMA["$defs"].items()
        for key, value in part.get("properties", {}).items()
        if "description" not in value and "$ref" not in value and "const" not in value
    ]
    assert set(undescribed) <= {
        "suite.batches", "suite.probe", "suite.kurtosis", "suite.phases", "text.source",
        "fork_schedule.kind",
    }  # fmt: skip
