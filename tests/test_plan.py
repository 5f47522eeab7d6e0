"""Files and params that rules need. A param contains only the keys that its job reads."""

import copy
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatminima.conditions import Condition
from flatminima.config import plan, plan_forks, plan_mechanism
from flatminima.config.loading import check_config, complete_config
from flatminima.config.suites import Suite, find_suite, read_suite
from flatminima.errors import ConfigError
from tests.test_config import CONFIG
from tests.test_config import changed as with_key


def suite_of(name: str, config=CONFIG) -> Suite:
    return find_suite(check_config(config), name)


MINI = suite_of("mini")
PYTHIA = suite_of("pythia-160m")


def changed(name: str, path: str, setting) -> Suite:
    """A committed suite with one key changed to ``setting``."""
    return suite_of(name, with_key(f"suites.{name}.{path}", setting))


def test_jobs_work_on_ranges_of_revisions_that_cover_all_of_them_once():
    for suite, first_range in ((MINI, "step0-step2640"), (PYTHIA, "step0")):
        assert suite.ranges[0] == first_range
        assert len(suite.steps) == 154
        assert sum(map(suite.steps_in, suite.ranges), []) == suite.steps
        for measure in plan_mechanism.RANGED:
            names = plan_mechanism.measure_ranges(suite, measure)
            parts = [list(plan_mechanism.measure_folders(suite, name, measure)) for name in names]
            covered = sum(parts, [])
            assert covered == plan_mechanism.measured_steps(suite, measure)
            assert covered[-1] == suite.last and set(covered) <= set(suite.steps)
            size = suite.key(f"mechanism.{measure}.steps_per_job")
            assert all(len(steps) <= size for steps in parts)


def test_folders_and_weights_of_a_range():
    steps = [512, 1000, 2000]
    folders = {step: f"results/pythia-160m/checkpoints/step{step}" for step in steps}
    assert PYTHIA.folders("step512-step2000") == folders
    weights = [f"{folder}/model.safetensors" for folder in folders.values()]
    assert plan.weights(PYTHIA, "step512-step2000") == weights


def test_measurements_use_every_nth_checkpoint_or_a_single_one():
    steps = plan_mechanism.measured_steps(MINI, "sensitivity")
    assert steps[-3:] == [5400, 5560, 5720]
    assert len(steps) == 39
    assert list(plan_mechanism.measure_folders(MINI, "step1000", "curvature")) == [1000]
    with pytest.raises(ConfigError, match="mechanism.curvature.* step1000-step1040; valid: "):
        plan_mechanism.measure_folders(MINI, "step1000-step1040", "curvature")
    with pytest.raises(ConfigError, match=r"suite pythia-160m has no mechanism.drift"):
        plan_mechanism.measure_weights(PYTHIA, "drift")


@given(st.sets(st.sampled_from(MINI.steps[1:-1]), max_size=8))
def test_training_jobs_write_each_checkpoint_once_for_any_jobs_end_at(cuts):
    config = copy.deepcopy(CONFIG)
    config["suites"]["mini"]["training"]["jobs_end_at"] = [*sorted(cuts), 5720]
    jobs = plan.pretraining_jobs(suite_of("mini", config))
    assert [step for job in jobs for step in job.checkpoints] == MINI.steps
    assert jobs[0].start == 0 and jobs[-1].stop == 5720 and "initial_state" not in jobs[0].inputs
    for before, after in pairwise(jobs):
        assert before.stop == after.start
        state = f"results/mini/training/step{before.stop}.safetensors"
        assert after.inputs["initial_state"] == state
    folders = [folder for job in jobs for folder in job.checkpoints.values()]
    assert folders == [f"results/mini/checkpoints/step{step}" for step in MINI.steps]
    assert plan.pretraining_jobs(PYTHIA) == []


def test_forks_start_from_a_checkpoint_and_only_oli_is_probed_densely():
    runs = plan_forks.runs(MINI, "cycles")
    assert runs == [f"oli-{order}first-seed{s}" for order in ("bump", "cool") for s in (0, 1, 2)]
    start = plan_forks.branch(MINI, "forks", "oli").inputs()
    folder = "results/mini/checkpoints/step2800"
    assert start == {"checkpoint": [f"{folder}/model.safetensors", f"{folder}/config.json"]}
    restored = changed("mini", "fork.optimizer_state", "restored")
    state = plan_forks.branch(restored, "forks", "oli").inputs()["state"]
    assert state == "results/mini/training/step2800.safetensors"
    dense = plan_forks.branch(MINI, "cycles", "oli-bumpfirst")
    settings = dense.settings()
    assert settings["definition"]["first"] == "bump" and len(dense.steps()) == 60
    assert settings["fork"]["probe_last"] == 4 * (3 + 12) and settings["fork"]["probe_every"] == 1
    definition = plan_forks.branch(MINI, "forks", "oli").settings()["definition"]
    assert definition["first"] == "cool", "the fork itself is unchanged"


def test_phase_flips_train_with_the_settings_of_the_forks():
    heavy = changed("mini", "fork.schedules.oli.weight_decay", 0.1)
    settings = plan_mechanism.phase_flip_settings(heavy)
    assert settings["oli"]["oli"] == plan_forks.branch(heavy, "forks", "oli").settings()
    assert settings["oli"]["oli"]["training"]["weight_decay"] == 0.1
    assert settings["control"]["training"]["weight_decay"] == 0.0
    restored = changed("mini", "fork.optimizer_state", "restored")
    state = "results/mini/training/step2800.safetensors"
    assert plan_mechanism.phase_flip_inputs(restored)["state"] == state
    assert "state" not in plan_mechanism.phase_flip_inputs(MINI)


def test_a_rewarmed_fork_is_drawn_and_calibrated_with_the_rates_of_its_training():
    fork = with_key("suites.mini.fork.rewarm_steps", 200)
    fork["suites"]["mini"]["fork"]["optimizer_state"] = "rewarmed"
    rewarmed = suite_of("mini", fork)
    # Bumps are multiples of the run's rate, also if forks start at rate 0.
    rate = plan_forks.calibration_settings(MINI)["rate"]
    assert plan_forks.calibration_settings(rewarmed)["rate"] == rate > 0.005
    for name, condition in plan_forks.fork_facts(rewarmed)["conditions"].items():
        assert condition == plan_forks.branch(rewarmed, "forks", name).settings()
        assert Condition(**condition).schedule(2800) == 0.0


# Parameters: which job reads which key

SCHEDULES = ("cosine", "sgdr", "oli")
SPLITS = ("validation", "train")


def parameters(suite: Suite) -> dict[str, object]:
    """Params and lists of files of the rules, by name."""
    functions = (
        *(plan.batches, plan.vocabulary, plan.probe, plan.schedule),
        *(plan.facts, plan.ledger_facts, plan.tokens_per_step, plan.integrity),
    )
    params = {function.__name__: function(suite) for function in functions}
    if suite.config.text.source == "packages":
        params["text"] = plan.package_text(suite)
    else:
        params |= {f"{split} text": plan.split_text(suite, split) for split in SPLITS}
    params |= {name: getattr(suite, name) for name in ("steps", "last", "spacing", "ranges")}
    params |= {series: plan_forks.runs(suite, series) for series in ("forks", "cycles")}
    for number, job in enumerate(plan.pretraining_jobs(suite)):
        params[f"job {number} settings"] = job.settings
        params[f"job {number} due"] = job.checkpoints
    for branch in plan_forks.branches(suite, "forks"):
        params[f"fork {branch.name}"] = branch.settings()
        params[f"start {branch.name}"] = branch.inputs()
    params["cycles oli"] = [branch.settings() for branch in plan_forks.branches(suite, "cycles")]
    return params


def changed_params(before: Suite, after: Suite) -> set[str]:
    """Names of the params that differ between two suites."""
    params_before = parameters(before)
    params_after = parameters(after)
    names = params_before.keys() | params_after.keys()
    return {name for name in names if params_before.get(name) != params_after.get(name)}


ALL_FORKS = {"fork cosine", "fork sgdr", "fork oli", "cycles oli"}
JOBS = {"job 0 settings", "job 1 settings"}
LABELS = {"facts", "ledger_facts"}
# By key: another value, and the params that must change with it.
KEYS = {
    # Keys of one fork. The ledger reads the definitions of the conditions.
    "fork.schedules.sgdr.period": (300, {"fork sgdr", "ledger_facts"}),
    "fork.schedules.oli.amplitude": (4.0, {"fork oli", "cycles oli", "ledger_facts"}),
    "fork.schedules.oli.first": ("bump", {"fork oli", "ledger_facts"}),
    "fork.phase_resolved.cycles": (2, {"cycles oli"}),
    "fork.seeds": ([0, 1], {"forks", "cycles", "ledger_facts"}),
    # Keys of all forks.
    "fork.steps": (800, ALL_FORKS | {"ledger_facts"}),
    "fork.probe_every": (20, (ALL_FORKS - {"cycles oli"}) | {"ledger_facts"}),
    "fork.start": (2840, ALL_FORKS | {f"start {s}" for s in SCHEDULES} | {"ledger_facts"}),
    "fork.keep_checkpoints": (False, set()),
    # Keys of the training, which forks continue.
    "training.weight_decay": (0.1, JOBS | ALL_FORKS),
    "training.lr_max": (0.02, JOBS | ALL_FORKS | {"schedule", "ledger_facts"}),
    "training.seed": (1, JOBS),
    "training.batch_size": (8, JOBS | {"tokens_per_step", "ledger_facts"}),
    "training.save_every": (100, set()),
    "architecture.num_heads": (8, JOBS),
    "grid.powers_of_two": (9, {"steps", "ranges", "job 0 due", "ledger_facts"}),
    # Keys of the probe, which audit and forks have in common.
    "probe.batch_size": (8, {"probe"}),
    "probe.low_bit": ("int4_g128", {"probe"} | LABELS),  # its printed name
    "device": ("cuda", {"probe"}),
    "probe.steps_per_job": (11, {"ranges"}),
    # Other keys.
    "kurtosis.layers": ("blocks+head", set()),
    "text.seed": (1, {"text"}),
    "batches.validation.sequences": (128, {"batches"}),
    "label": ("another", LABELS),
    "threads": (2, set()),
}


# The section training of a hub suite describes its forks only. The hub's text is collected in the
# amount that the batches need.
HUB_KEYS = {
    "integrity.duplicate": ("warn", {"integrity"}),
    "tokenizer.end_of_text": ("</s>", {"vocabulary"}),
    "training.seed": (1, set()),
    "batches.train.sequences": (1000, {"batches", "train text"}),
    "batches.validation.document_start": (True, {"batches", "validation text"}),
    "batches.validation.end_of_text": (False, {"batches"}),
    "text.characters_per_token": (9, {"validation text", "train text"}),
    "architecture.vocab_size": (50_432, {"vocabulary"}),
}


def test_a_key_changes_the_params_that_read_it_and_no_others():
    for suite, keys in ((MINI, KEYS), (PYTHIA, HUB_KEYS)):
        for path, (setting, expected) in keys.items():
            assert changed_params(suite, changed(suite.name, path, setting)) == expected, path

    config = copy.deepcopy(CONFIG)
    config["quantizers"]["int4_g128"]["bits"] = 3  # a quantizer of pythia-160m, not of mini
    assert changed_params(MINI, suite_of("mini", config)) == set()
    assert changed_params(PYTHIA, suite_of("pythia-160m", config)) == {"probe"} | LABELS
    assert plan.probe(MINI)["roles"] == {"int4_g64": "low_bit", "int8_channel": "high_bit"}


FILE = {"path": "a.txt"}


def text_suite(validation, train, **batches) -> Suite:
    config = copy.deepcopy(CONFIG)
    suite = config["suites"]["pythia-160m"]
    suite["text"] = {"source": "files", "validation": validation, "train": train}
    suite["batches"]["validation"] = {"sequences": 10, "length": 20} | batches
    del suite["mechanism"]
    return suite_of("pythia-160m", config)


def wanted(suite: Suite, split: str = "validation") -> dict:
    return plan.split_text(suite, split)["wanted"]


def test_eight_characters_of_text_are_collected_per_token():
    assert wanted(PYTHIA) == {"amount": 8 * 128 * 512}
    assert wanted(PYTHIA, "train") == {"amount": 8 * 120_000 * 2048}
    starts = wanted(text_suite([FILE], [FILE], document_start=True))
    assert starts == {"amount": 10, "document_of": 8 * 20}
    short = wanted(text_suite([FILE], [FILE], longest_document=30))
    assert short == {"amount": 2 * 8 * 200, "longest": 8 * 30}
    assert set(plan.package_text(MINI)["installed"]) == {"numpy", "scipy", "pandas", "matplotlib"}


def test_a_local_file_is_an_input_if_no_hub_source_comes_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    hub = {"repo": "a/b", "file": "c.txt"}
    a = FILE
    b = {"path": "b.txt"}
    gone = {"path": "gone.txt"}
    for validation, train, files in (
        ([a, b], [b], ["a.txt", "b.txt"]),
        ([gone, b], [b, a], ["b.txt", "b.txt"]),
        ([hub, a], [gone, hub, a], []),
    ):
        suite = text_suite(validation, train)
        assert [file for split in SPLITS for file in plan.text_files(suite, split)] == files
    assert plan.text_files(PYTHIA, "validation") == plan.text_files(PYTHIA, "train") == []
    with pytest.raises(ConfigError) as error:
        plan.text_files(text_suite([a], [gone, {"path": "gone.jsonl"}]), "train")
    assert str(error.value).startswith("config key suites.pythia-160m.text.train: ")
    assert str(error.value).endswith("gone.txt, gone.jsonl")


def test_settings_contain_the_keys_that_a_job_reads_and_not_its_steps():
    settings = plan_mechanism.measure_settings(MINI, "curvature")
    assert set(settings) == {"sequences", "draws", "batch_size", "resamples", "device", "layers"}
    low, high = plan_mechanism.probed_cells(MINI).values()
    assert low == {"bits": 4, "symmetric": False, "granularity": "g64"}
    assert high["granularity"] == "channel"
    replica = plan_mechanism.replica(MINI, "width32-seed1").settings()
    assert replica["architecture"]["hidden_size"] == 32 and replica["training"]["seed"] == 1
    assert replica["training"]["warmup_steps"] == 12, "scaled with the run"


def test_small_runs_see_as_many_tokens_per_weight_as_configured():
    fresh = read_suite("fresh", [])
    assert len(plan_mechanism.replicas(fresh)) == 8
    for name in ("width16-seed0-decay0", "width32-seed1-decay0.1"):
        run = plan_mechanism.replica(fresh, name)
        tokens_per_weight_and_step = run.labels["tokens_per_step"] / run.labels["weights"]
        tokens_per_weight = run.steps[-1] * tokens_per_weight_and_step
        assert 3550 <= tokens_per_weight < 3550 + 200 * tokens_per_weight_and_step
        assert run.settings()["training"]["weight_decay"] == run.labels["weight_decay"]
        assert list(run.folders()) == run.steps
    with pytest.raises(ConfigError, match="width64-seed0.*valid: width16-seed0-decay0"):
        plan_mechanism.replica(fresh, "width64-seed0")


FIGURES = {
    "fig8_rivals": ["rivals.csv"],
    "fig11_drift": ["mechanism/phase_flips.csv", "phases.json"],
    "fig13_replication": ["mechanism/replication_runs.csv"],
}


def extended(suite: Suite) -> list[str]:
    return plan_mechanism.extended_outputs(suite, FIGURES)


def test_the_planted_suite_is_the_control_of_the_suite_whose_checkpoints_it_scales():
    suites = complete_config(CONFIG).suites
    controls = plan_mechanism.control_outputs(suites, "mini")
    assert "results/planted/figures/fig1_audit.png" in controls
    assert plan_mechanism.control_outputs(suites, "pythia-160m") == []


def test_extended_builds_what_the_configuration_requests_if_it_is_possible():
    outputs = extended(MINI)
    assert "results/mini/notebooks/mechanism.html" in outputs
    assert sum(path.endswith(".pdf") for path in outputs) == 4
    assert "results/fresh/figures/fig15_tokens.pdf" in outputs
    pythia = " ".join(extended(PYTHIA))
    assert "results/pythia-160m/mechanism/findings.csv" in pythia and "fig11_drift.png" in pythia
    assert "mechanism.html" not in pythia and "fig13" not in pythia
    config = copy.deepcopy(CONFIG)
    mini = config["suites"]["mini"]
    pythia_mechanism = config["suites"]["pythia-160m"]["mechanism"]
    pythia_mechanism["replication"] = mini["mechanism"]["replication"]
    del mini["fork"]["schedules"]["oli"], mini["fork"]["amplitudes"]
    assert "replication" not in plan_mechanism.measured(suite_of("pythia-160m", config))
    assert "phase_flips" not in plan_mechanism.measured(suite_of("mini", config))
    assert "fig11" not in " ".join(extended(suite_of("mini", config)))
    del mini["mechanism"]
    outputs = extended(suite_of("mini", config))
    assert outputs
    assert not any("mechanism" in path or "claims" in path for path in outputs)


def test_a_quantizer_without_even_levels_allows_the_other_measurements():
    config = copy.deepcopy(CONFIG)
    config["quantizers"]["nf4"] = {"kind": "nf4"}
    config["suites"]["mini"]["probe"]["low_bit"] = "nf4"
    suite = suite_of("mini", config)
    possible = {"layers", "curvature", "activations", "replication"}
    assert set(plan_mechanism.measured(suite)) == possible
    assert plan_mechanism.measure_settings(suite, "layers")["low_bit"]["kind"] == "nf4"
    assert "results/mini/mechanism/findings.csv" in extended(suite)
    assert "results/mini/calibration.json" not in extended(suite)
    assert "results/mini/calibration.json" in extended(MINI)
    with pytest.raises(ConfigError, match=r"probe.low_bit is NF4"):
        plan_forks.calibration_settings(suite)


def test_missing_stored_measurements_give_one_line_with_a_cure(tmp_path):
    config = copy.deepcopy(CONFIG)
    mini = config["suites"]["mini"]
    mini |= {"source": "published", "measurements": "nowhere"}
    for folder, reason in (
        ("nowhere", "mini.measurements: .* nowhere; valid: .*resources/published/mini"),
        (str(tmp_path), f"{tmp_path}/SHA256SUMS is missing; copy the folder"),
    ):
        mini["measurements"] = folder
        with pytest.raises(ConfigError, match=reason) as error:
            plan.frozen_files(suite_of("mini", config))
        assert "git" not in str(error.value)
    mini["measurements"] = "resources/published/mini"
    assert plan.frozen_files(suite_of("mini", config))
