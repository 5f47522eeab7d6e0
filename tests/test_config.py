"""A mistake in the configuration gives one line: the key, the value and what is valid."""

import copy
import json
from functools import reduce
from operator import getitem

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from snakemake.cli import parse_config

from flatminima.config import plan, plan_forks, plan_mechanism
from flatminima.config.documentation import (
    KEYS_FILE,
    SCHEMA_FILE,
    describe_keys,
    json_schema,
    keys_page,
)
from flatminima.config.keys import Config
from flatminima.config.loading import (
    as_in_a_file,
    check_config,
    complete_config,
    read_config,
    read_library,
    resolve_suites,
)
from flatminima.config.suites import Suite, find_suite
from flatminima.errors import ConfigError
from tests.workflow import ROOT

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())
# The second arm of mini, which comes with the workflow.
CONFIG["suites"]["fresh"] = resolve_suites(CONFIG["suites"], read_library())["fresh"]
TINY = yaml.safe_load((ROOT / "tests/config/tiny.yaml").read_text())
DELETE = object()


def changed(path, setting) -> dict:
    """The committed configuration with one key changed to ``setting``, or deleted."""
    config = copy.deepcopy(CONFIG)
    *parents, last = path.split(".") if isinstance(path, str) else path
    section = reduce(getitem, parents, config)
    section[last] = setting
    if setting is DELETE:
        del section[last]
    return config


def refusal(config) -> str:
    """The one line of the error for a configuration that is refused."""
    with pytest.raises(ConfigError) as error:
        check_config(config)
    line = str(error.value)
    assert line.startswith("config key ") and "\n" not in line and len(line) < 1000
    return line


def test_the_committed_configurations_are_valid():
    plan_everything(check_config(CONFIG))
    merged = {key: CONFIG[key] | TINY[key] for key in ("suites", "quantizers")}
    for config in (CONFIG, merged | {"suite": "tiny"}):
        check_config(config)
    assert {"mini", "pythia-12b", "olmo-2-7b", "mini-published"} <= read_config().suites.keys()


MINI = CONFIG["suites"]["mini"]
# Key, wrong value and a part of the error, by suite: at least one row for each check of ours and
# for each kind of pydantic error.
MISTAKES = {
    "mini": [
        ("source", ["hub"], "is not valid"),
        ("source", "hubb", "'hubb' is not valid; did you mean hub? valid: pretrain, "),
        ("repo", "some/model", "repo is not known; valid: architecture, batches"),
        ("probe.low_bits", 1, "low_bits is not known; did you mean low_bit?"),
        ("probe.low_bit", "int4_g46", "'int4_g46' is not known; did you mean int4_g64?"),
        ("probe.high_bit", "int4_g64", "low_bit and high_bit are both 'int4_g64'"),
        ("probe.also", ["int4_g46"], "probe.also[0]: 'int4_g46' is not known; did you mean"),
        ("probe.also", ["int4_g64"], "probe.also: 'int4_g64' is measured anyway"),
        ("probe", MINI["probe"] | {"low_bit": "int8_channel", "high_bit": "int4_g64"},
         "low_bit must not have more bits (8) than high_bit (4)"),
        ("label", "two\nlines", "is not valid: string should match pattern"),
        ("training", DELETE, "suites.mini lacks training"),
        ("training.jobs_end_at", [2800], "must rise and end at the last step 5720"),
        ("training.jobs_end_at", DELETE, "must rise and end at the last step 5720"),
        ("training.warmup_steps", 5720, "not below the suite's last step 5720"),
        ("training.lr_min", 0.1, "above lr_max 0.01"),
        ("training.eps", "1e-8", "'1e-8' is not valid; valid: a number"),
        ("grid.last", 5721, "must be a multiple of spacing 40"),
        ("grid", "discover", "valid with source pretrain: powers_of_two"),
        ("grid.last", 40 * 10**7, "10000000 revisions; at most 10000"),
        ("grid.last", 40 * 10**9, "grid.last: 40000000000 is not valid; valid: "),
        ("probe.batch_size", 10**9, "probe.batch_size would take 1.31e+14 bytes of memory"),
        ("architecture.hidden_size", 10**8, "architecture would take 9.6e+17 bytes"),
        ("batches.train.sequences", 10**12, "train.sequences: 1000000000000 is not valid"),
        ("batches.train.length", int("7" * 4299), "length: 7777"),
        ("threads", int("7" * 4299), "threads: 7777"),
        ("threads", 10**6, "threads: 1000000 is not valid; valid: "),
        ("training.lr_max", 1e308, "training.lr_max: 1e+308 is not valid; valid: "),
        ("training.weight_decay", 1e308, "weight_decay: 1e+308 is not valid"),
        ("training.clip_norm", 1e308, "clip_norm: 1e+308 is not valid"),
        ("fork.cooldown_steps", 10**15, "cooldown_steps: 1000000000000000 is not valid"),
        ("fork.schedules.oli.amplitude", 1e308, "oli.amplitude: 1e+308 is not valid"),
        ("fork.amplitudes", [1e308], "amplitudes[0]: 1e+308 is not valid"),
        ("fork.steps", 40 * 10**7, "probed every 40, make 10000000 probes; at most 10000"),
        ("fork.pilot.steps", 8 * 10**7, "pilot.probe_every: 80000000 steps, probed every 8, make"),
        ("mechanism.phase_flips.cycles", 81, "cycles: 81 cycles of fork.schedules.oli are 1215"),
        ("mechanism.replication.last", 40 * 10**7, "replication.spacing: 400000000 steps, pro"),
        ("mechanism.second_arm", "nowhere", "mini.mechanism.second_arm: 'nowhere' is not known"),
        ("mechanism.second_arm", "pythia-160m", "'pythia-160m' lacks mechanism.replication"),
        ("fork.primary.comparison", "sgdr v cosin", "did you mean sgdr v cosine?"),
        ("fork.primary.comparison", "cosine v cosine", "valid: sgdr v cosine, oli v cosine"),
        ("fork.primary", MINI["fork"]["primary"] | {"measure": "mean_gap_pct",
                                                    "comparison": "oli v cosine"},
         "valid: sgdr v cosine, oli cool v cosine, oli all v cosine"),
        ("fork.cooldown_steps", DELETE, "measure: cooled_gap_pct needs fork.cooldown_steps"),
        ("training.batch_size", 10**9, "training.batch_size would take"),
        ("architecture.num_heads", 5, "5 must divide hidden_size 64"),
        ("batches.train.length", 65, "65 is longer than architecture.max_length 64"),
        ("text.packages", ["numpy", "nosuchpackage"], "'nosuchpackage' is not installed"),
        ("text.min_characters", 0, "text.min_characters: 0 is not valid; valid: 1 or more"),
        ("text.source", "package", "'package' is not valid; did you mean packages?"),
        ("fork.start", 2801, "fork.start: step 2801 is not on the grid; nearest: 2800 and"),
        ("fork.probe_every", 41, "41 must divide fork.steps 1200"),
        ("fork.seeds", [0, 0], "[0, 0] has 0 twice"),
        ("fork.phase_resolved.cycles", 81, "at most fork.steps 1200"),
        ("fork.schedules.cosine", {"kind": "sgdr", "period": 400}, "lacks cosine, the control"),
        ("fork.schedules.oli.kind", DELETE, "oli lacks kind"),
        ("fork.schedules", {"cosine": {"kind": "cosine"}}, "needs a schedule of kind oli"),
        ("fork.optimizer_state", "rewarmed", "rewarm_steps goes with optimizer_state rew"),
        ("fork.pilot.length", 12, "12 must divide batches.train.length 64 and be shorter"),
        ("fork.rivals.sgdr", {"kind": "linear"}, "rivals.sgdr: this name is taken"),
        ("fork.rivals.run.window", 200, "up to step 4000; valid: 1 to"),
        ("mechanism.layers.steps", [40], "mechanism.layers takes every or steps"),
        ("mechanism.drift", {"steps": [41]}, "step 41 is not on the grid; nearest: 40 and"),
        ("mechanism.curvature.sequences", 63, "63 must be a multiple of mechanism.batch_size"),
        ("mechanism.activations.sequences", 512, "512 is more than the suite has; valid: 1 to 256"),
        ("mechanism.replication.widths", [34], "num_heads 4 must divide 34"),
        ("mechanism.replication.low_bit", "int4_g46", "'int4_g46' is not known; did you mean"),
    ],
    "pythia-160m": [
        ("repo", "a b", "suites.pythia-160m.repo: 'a b' is not valid"),
        ("revision", "step(?P<step>[0-9]+", "is not a valid regular expression"),
        ("revision", "step[0-9]+", "needs a group (?P<step>...)"),
        ("batches.train.sequences", 10**9, "batches.train would take"),
        ("grid", {"steps": [9, 80], "last": 10}, "grid.last: 10 is before step 80"),
        ("text.train", DELETE, "text lacks train, needed for batches.train"),
        ("text.train", [{"path": "a.pdf"}], "text.train[0].path: 'a.pdf' has no known ending"),
        ("text.train", [{"path": "a{b}.txt"}], "'a{b}.txt' is not valid"),
        ("text.train", [{"path": "a.txt", "revision": "b"}], "revision goes with repo and file"),
        ("batches.validation", {"sequences": 2, "length": 64, "document_start": True,
                                "longest_document": 9}, "would leave no document"),
        ("text.train", [{"repo": "a/b"}], "train[0] has repo; valid: path, or repo"),
        ("fork.optimizer_state", "restored", "restored needs a state of the training at step 7"),
    ],
}  # fmt: skip
MISTAKES_OUTSIDE_SUITES = [
    ("suite", "minni", "suite: 'minni' is not known; did you mean mini? valid: mini, pythia-160m"),
    ("sute", "mini", "config key sute is not known; did you mean suite?"),
    ("suites.mini", None, "suites.mini: None is not valid"),
    ("quantizers.int4_g64.bits", 1, "1 is not valid; valid: 2 or more"),
    ("quantizers.int8_channel.group_size", 64, "takes no group_size"),
    ("quantizers.nf4", {"kind": "nf5"}, "quantizers.nf4.kind: 'nf5' is not valid; did you mean"),
    ("quantizers.fp32", CONFIG["quantizers"]["int8_channel"], "taken by full precision"),
    ("suites.paper", MINI, "taken by the printed tables"),
    (("suites", ".."), MINI, "'..' is not valid"),
]


def test_each_mistake_gives_one_line_with_key_and_valid_values():
    mistakes = list(MISTAKES_OUTSIDE_SUITES)
    for suite, rows in MISTAKES.items():
        for path, setting, part in rows:
            mistakes.append((("suites", suite, *path.split(".")), setting, part))
    for path, setting, part in mistakes:
        assert part in refusal(changed(path, setting)), path
    check_config(changed("suites.mini.fork.optimizer_state", "restored"))


def test_a_mistake_is_reported_for_the_suite_that_contains_it():
    """Seventy suites inherit from pythia-160m, in files that are read in the order of names."""
    child = {"extends": "pythia-160m", "label": "a"}
    for name, key, setting in (("pythia-160m", "sead", 1), ("pythia-14m", "threads", 0)):
        mistaken = {name: CONFIG["suites"].get(name, {}) | {key: setting}}
        suites = {"a": child} | mistaken | CONFIG["suites"] | mistaken
        with pytest.raises(ConfigError, match=f"^config key suites.{name}.{key}"):
            complete_config(CONFIG | {"suites": suites})


def places(section, prefix=()):
    """Path and setting of every key below ``section``."""
    if isinstance(section, dict):
        for key, setting in section.items():
            yield (*prefix, key), setting
            yield from places(setting, (*prefix, key))


PLACES = list(places(CONFIG))


def test_unknown_keys_and_values_of_a_wrong_type_are_refused_at_every_level():
    for place, setting in PLACES:
        path = ".".join(place)
        if isinstance(setting, dict):
            line = refusal(changed((*place, "nonsense"), 1))
            # In a mapping whose keys are names, the value is wrong, not the key.
            unknown = f"config key {path}.nonsense"
            assert line.startswith((f"{unknown} is not known; ", f"{unknown}: 1 is not ")), line
        else:
            line = refusal(changed(place, {"a": [1]}))
            assert line.startswith(f"config key {path}: {{'a': [1]}} is not "), line


ODD_SETTINGS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.floats(allow_subnormal=False),  # another test of this process may flush them to zero
    st.text(max_size=8),
    st.lists(st.integers(-2, 6000), max_size=3),
    st.dictionaries(st.text(max_size=4), st.none(), max_size=2),
    st.sampled_from([setting for _, setting in PLACES]),
)


def plan_everything(config: Config) -> None:
    """Plan everything that rules need. Nothing may fail for a configuration that is valid."""
    for name in config.suites:
        suite = find_suite(config, name)
        assert plan.pretraining_jobs(suite) or suite.source == "hub"
        ranges = f"step{suite.steps[0]}-step{suite.steps[-1]}"
        plan.checkpoint_files(suite, ranges, f"probes/{ranges}.csv")
        plan.weights(suite, ranges)
        suite.folders(ranges)
        for plan_settings in (
            *(plan.probe, plan.batches, plan.schedule, plan.facts),
            *(plan.tokens_per_step, plan.vocabulary),
        ):
            plan_settings(suite)
        if suite.config.text.source == "packages":
            plan.package_text(suite)
        else:
            plan.split_text(suite, "validation")
        for measure in set(plan_mechanism.RANGED) & {*plan_mechanism.measured(suite)}:
            assert plan_mechanism.measure_ranges(suite, measure)
            assert plan_mechanism.measure_settings(suite, measure)
        if suite.config.fork:
            plan_all_forks(suite)


def plan_all_forks(suite: Suite) -> None:
    plan_forks.fork_facts(suite)
    if suite.is_even:
        plan.ledger_facts(suite)
    for gathered in ("forks", "cycles", "pilot", "amplitudes", "rivals"):
        if getattr(suite.config.fork, gathered, True):
            plan_forks.trajectories(suite, gathered)
    for series in ("forks", "cycles", "variants", "cooled"):
        for branch in plan_forks.branches(suite, series):
            assert branch.inputs() and branch.folders("0") and branch.trajectory("0")
    for average in plan_forks.averages(suite):
        assert set(plan_forks.average_steps(suite, average)) <= set(suite.steps)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([place for place, _ in PLACES]),
            st.sampled_from(["delete", "set", "set", "rename", "add"]),
            st.text(max_size=6) | st.sampled_from([place[-1] for place, _ in PLACES]),
            ODD_SETTINGS,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_changed_configuration_is_either_refused_in_one_line_or_can_be_planned(changes):
    """The only fuzz test of the configuration."""
    config = copy.deepcopy(CONFIG)
    for place, action, new_key, odd_setting in changes:
        *parents, key = place
        try:
            section = reduce(getitem, parents, config)
            old_setting = section[key]
        except (KeyError, TypeError):  # an earlier change has removed it
            continue
        if action in ("delete", "rename"):
            del section[key]
        if action == "rename":
            section[new_key] = old_setting
        elif action == "set":
            section[key] = odd_setting
        elif action == "add":
            section[new_key] = odd_setting
    try:
        valid_config = check_config(config)
    except ConfigError:
        refusal(config)
    else:
        plan_everything(valid_config)


def test_the_committed_schema_and_page_are_current_and_describe_every_key():
    remedy = "PYTHONPATH=workflow_scripts python -m flatminima.config.documentation"
    assert json.loads(SCHEMA_FILE.read_text()) == json_schema(), remedy
    assert KEYS_FILE.read_text() == keys_page(), remedy
    rows = describe_keys()
    assert [path for path, (_, _, description) in rows.items() if not description] == []
    assert len(rows) > 150
    kind, _, _ = rows["suites.NAME.fork.schedules.NAME.kind"]
    assert "sgdr" in kind
    assert "suites.NAME.grid.spacing" in rows


def test_a_default_that_a_description_states_is_in_the_column_of_defaults():
    _, default, description = describe_keys()["suites.NAME.architecture.vocab_size"]
    assert default == "50304, as in Pythia"
    assert "Default" not in description and "token ids" in description


def test_a_file_that_is_not_a_configuration_gives_one_line(tmp_path):
    path = tmp_path / "mine.yaml"
    for text, reason in (
        ("[1]", "not a mapping"),
        ("", "empty"),
        ("a: [", "while parsing"),
        ("a: {b: 1,\n  c: 2, b: 3}", "line 2: duplicate key b"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"mine.yaml: {reason}"):
            read_config([path])
    path.write_bytes("label: größer".encode("latin-1"))
    with pytest.raises(ConfigError, match="mine.yaml: .*UTF-8"):
        read_config([path])
    path.write_bytes(b"\xef\xbb\xbfsuite: mini")  # a byte order mark
    assert read_config([path]).suite == "mini"
    with pytest.raises(ConfigError, match="gone.yaml: there is no such file"):
        read_config([tmp_path / "gone.yaml"])


@pytest.mark.parametrize(
    "text",
    [
        "{threads: 2, training: {lr_max: 0.02, schedule: cosine}}",
        "{label: 'a: b', s: [1, 2]}",
        "{fork: }",
        "{keep: true, name: '@', list: [x, 1.5, {deep: 3}]}",
        "{day: 2026-13-45}",
        "{}",
    ],
)
def test_a_mapping_of_the_command_line_is_read_as_in_a_file(text):
    (from_command_line,) = parse_config([f"suites={text}"]).values()
    # A date that does not exist is an error in a file, and text on the command line.
    from_file = yaml.safe_load(text.replace("2026-13-45", "'2026-13-45'"))
    assert as_in_a_file(from_command_line) == from_file


def test_a_path_may_begin_with_the_home_folder_as_in_a_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for home in ("~", "$HOME"):
        suite = {
            "label": "mine",
            "source": "local",
            "pattern": f"{home}/runs/step{{step}}",
            "text": {"source": "files", "validation": [{"path": f"{home}/text.txt"}]},
            "batches": {"validation": {"sequences": 8, "length": 64}},
        }
        suites = CONFIG["suites"] | {"mine": suite}
        config = complete_config(CONFIG | {"suite": "mine", "suites": suites})
        mine = config.suites["mine"]
        assert mine.pattern == f"{tmp_path}/runs/step{{step}}"
        assert mine.text.validation[0].path == f"{tmp_path}/text.txt"
