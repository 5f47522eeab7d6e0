"""What a suite comes to in files and parameters; a parameter holds what its job reads, no more."""

import copy
from itertools import pairwise

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flatminima.errors import ConfigError
from flatminima.integrity import DEFAULT_SEVERITY, FINDINGS
from flatminima.planning import SuitePlan, final_outputs
from tests.workflow import ROOT

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())


def plan_of(name: str, config=CONFIG) -> SuitePlan:
    return SuitePlan(name, config["suites"][name], config["quantizers"])


MINI, PYTHIA = plan_of("mini"), plan_of("pythia-160m")

# Revisions and ranges


@pytest.mark.parametrize(("plan", "spacing", "last"), [(MINI, 40, 5720), (PYTHIA, 1000, 143000)])
def test_154_revisions(plan, spacing, last):
    assert len(plan.steps) == 154
    assert plan.steps == sorted({0, *(2**i for i in range(10)), *range(spacing, last + 1, spacing)})


@pytest.mark.parametrize("plan", [MINI, PYTHIA])
def test_jobs_on_ranges_cover_every_revision_once(plan):
    size = plan.section["probe"]["steps_per_job"]
    names = [path.split("/")[-1].removesuffix(".csv") for path in plan.probe_tables]
    ranges = [plan.steps_in(name) for name in names]
    assert [step for steps in ranges for step in steps] == plan.steps
    assert all(len(steps) <= size for steps in ranges)
    for tables, folder in [(plan.kurtosis_tables, "kurtosis"), (plan.revision_tables, "revisions")]:
        assert tables == [f"{plan.root}/{folder}/{name}.csv" for name in names]
    assert plan.probe_sequences == [f"{plan.root}/probes/{name}.parquet" for name in names]


@given(st.data())
def test_a_range_holds_the_revisions_between_its_ends(data):
    first, last = sorted(data.draw(st.lists(st.sampled_from(PYTHIA.steps), min_size=2, max_size=2)))
    steps = PYTHIA.steps_in(f"step{first}-step{last}")
    assert steps == [step for step in PYTHIA.steps if first <= step <= last]
    name = f"step{first}-step{last}"
    assert list(PYTHIA.folders(name)) == steps
    assert len(PYTHIA.checkpoint_files(name)) == 2 * len(steps)
    assert PYTHIA.weights(name) == [
        f"results/pythia-160m/checkpoints/step{step}/model.safetensors" for step in steps
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("step1001", "step 1001 is not a revision of this suite; nearest: 1000 and 1040"),
        ("step5760", "step 5760 is not a revision of this suite; nearest: 5720"),
        ("step1000-step40", "'step1000-step40' runs backwards; write step40-step1000"),
        ("step0040", "'step0040' is no step or range"),
        ("step-40", "'step-40' is no step or range"),
        ("step40-step80-step120", "is no step or range; write step0 or step0-step5720"),
        ("", "'' is no step or range"),
    ],
)
def test_a_mistaken_range_is_one_line_that_names_the_suite(name, line):
    for method in (MINI.steps_in, MINI.weights, MINI.checkpoint_files, MINI.folders):
        with pytest.raises(ConfigError) as error:
            method(name)
        assert str(error.value).startswith("suite mini: ") and line in str(error.value)
        assert "\n" not in str(error.value)


def test_a_revision_that_the_hub_suite_lacks_is_not_fetched():
    assert PYTHIA.repo("1000") == PYTHIA.repo("512") == "EleutherAI/pythia-160m"
    with pytest.raises(ConfigError, match="step 1001 is not a revision of this suite"):
        PYTHIA.repo("1001")


def test_every_kind_of_finding_has_a_severity():
    config = copy.deepcopy(CONFIG)
    config["suites"]["pythia-160m"]["integrity"] = {"duplicate": "warn"}
    severity = plan_of("pythia-160m", config).integrity
    assert severity == MINI.integrity | {"duplicate": "warn"} and severity.keys() == FINDINGS.keys()
    assert MINI.integrity == PYTHIA.integrity == DEFAULT_SEVERITY


def test_the_branch_of_a_step():
    assert PYTHIA.revision("1000") == PYTHIA.revision(1000) == "step1000"
    for step in ("1001", "01000", -1):
        with pytest.raises(ConfigError, match=f"step{step}|step {step}"):
            PYTHIA.revision(step)


# Training jobs


def test_training_jobs_divide_the_grid():
    jobs = MINI.pretraining_jobs
    assert [(job.start, job.stop) for job in jobs] == [(0, 2800), (2800, 5720)]
    due = [step for job in jobs for step in job.checkpoints]
    assert due == MINI.steps, "every revision is made by one job, in order"
    for job in jobs:
        assert all(
            job.start < step <= job.stop or step == job.start == 0 for step in job.checkpoints
        )
        assert len(job.files) == len(set(job.files)) == 3 * len(job.checkpoints)
        assert set(job.files) == {
            f"{folder}/{file}"
            for folder in job.checkpoints.values()
            for file in ("model.safetensors", "config.json", "SHA256SUMS")
        }
    for before, after in pairwise(jobs):
        assert (
            after.inputs["initial_state"] == f"results/mini/training/step{before.stop}.safetensors"
        )
    assert "state" not in jobs[0].inputs
    assert PYTHIA.pretraining_jobs == []


@given(st.sets(st.sampled_from(MINI.steps[1:-1]), max_size=8))
def test_training_jobs_divide_the_grid_wherever_they_are_cut(cuts):
    config = copy.deepcopy(CONFIG)
    config["suites"]["mini"]["training"]["jobs_end_at"] = [*sorted(cuts), 5720]
    jobs = plan_of("mini", config).pretraining_jobs
    assert [step for job in jobs for step in job.checkpoints] == MINI.steps
    assert jobs[0].start == 0 and jobs[-1].stop == 5720
    assert all(before.stop == after.start for before, after in pairwise(jobs))
    assert len({file for job in jobs for file in job.files}) == 3 * 154


# Forks


def test_forks_are_every_schedule_with_every_seed():
    assert MINI.forks == [
        f"results/mini/forks/{schedule}-seed{seed}.csv"
        for schedule in ("cosine", "sgdr", "oli")
        for seed in (0, 1, 2)
    ]
    inputs = MINI.condition_inputs("forks", "oli")
    assert set(inputs) == {"weights", "config"}
    assert inputs["weights"] == "results/mini/checkpoints/step2800/model.safetensors"
    with pytest.raises(ConfigError, match="'olli' is not known; did you mean oli?"):
        MINI.condition_inputs("forks", "olli")
    with pytest.raises(ConfigError, match="'olli' is not known; did you mean oli?"):
        MINI.fork_settings("olli")


def test_restored_moments_come_from_the_state_at_the_fork():
    config = copy.deepcopy(CONFIG)
    config["suites"]["mini"]["fork"]["optimizer_state"] = "restored"
    state = plan_of("mini", config).condition_inputs("forks", "oli")["state"]
    assert state == "results/mini/training/step2800.safetensors"


def test_dense_probes_belong_to_oli_alone():
    assert len(MINI.cycles) == 2 * 3
    assert all("/oli-bumpfirst-" in path or "/oli-coolfirst-" in path for path in MINI.cycles)
    settings = MINI.cycle_settings("oli-bumpfirst")
    assert settings["definition"]["first"] == "bump"
    assert settings["fork"]["probe_last"] == 4 * (3 + 12) and settings["fork"]["probe_every"] == 1
    assert MINI.fork_settings("oli")["definition"]["first"] == "cool", (
        "the fork itself is as it was"
    )
    with pytest.raises(ConfigError, match="'sgdr' has no phases"):
        MINI.cycle_settings("sgdr-bumpfirst")


# Parameters: which job reads which key

SCHEDULES = ("cosine", "sgdr", "oli")


def parameters(plan: SuitePlan) -> dict[str, object]:
    """Every parameter and every list of files of the rules, under names of its own."""
    found = {
        what: getattr(plan, what)
        for what in ("text", "text_files", "batches", "vocabulary", "probe", "schedule", "facts",
                     "ledger_facts", "spacing", "last", "tokens_per_step",
                     "phase_resamples", "kurtosis_layers", "save_every", "steps",
                     "probe_tables", "forks", "cycles", "integrity")
    }  # fmt: skip
    if plan.section["source"] == "hub":
        found |= {"repo": plan.repo("0"), "tokenizer_source": plan.tokenizer_source}
        found |= {"hub_repo": plan.hub_repo, "branches": plan.revisions("step0-step1000")}
    else:
        found |= {"vocab_size": plan.vocab_size}
        for number, job in enumerate(plan.pretraining_jobs):
            found |= {f"job {number} settings": job.settings, f"job {number} due": job.checkpoints}
    for schedule in SCHEDULES:
        found |= {f"fork {schedule}": plan.fork_settings(schedule)}
        found |= {f"start {schedule}": plan.condition_inputs("forks", schedule)}
    found["cycles oli"] = [plan.cycle_settings(f"oli-{order}first") for order in ("bump", "cool")]
    return found


def moved_by(name: str, path: str, value) -> set[str]:
    """Parameters of a suite that are others once a key of it has another value."""
    config = copy.deepcopy(CONFIG)
    *parents, last = path.split(".")
    section = config["suites"][name]
    for part in parents:
        section = section[part]
    assert section.get(last) != value
    section[last] = value
    before, after = parameters(plan_of(name)), parameters(plan_of(name, config))
    return {what for what in before | after if before.get(what) != after.get(what)}


ALL_FORKS = {"fork cosine", "fork sgdr", "fork oli", "cycles oli"}
JOBS = {"job 0 settings", "job 1 settings"}
LABELS = {"facts", "ledger_facts"}
KEYS = {
    # Of one fork, and of the ledger, which reads the definitions of the conditions.
    "fork.schedules.sgdr.period": (300, {"fork sgdr", "ledger_facts"}),
    "fork.schedules.oli.amplitude": (4.0, {"fork oli", "cycles oli", "ledger_facts"}),
    "fork.schedules.oli.cool_steps": (27, {"fork oli", "cycles oli", "ledger_facts"}),
    "fork.schedules.oli.first": ("bump", {"fork oli", "ledger_facts"}),
    "fork.phase_resolved.cycles": (2, {"cycles oli"}),
    "fork.seeds": ([0, 1], {"forks", "cycles", "ledger_facts"}),
    # Of all forks.
    "fork.steps": (800, ALL_FORKS | {"ledger_facts"}),
    "fork.batch_size": (8, ALL_FORKS | {"ledger_facts"}),
    "fork.probe_every": (20, (ALL_FORKS - {"cycles oli"}) | {"ledger_facts"}),
    "fork.start": (2840, ALL_FORKS | {f"start {s}" for s in SCHEDULES} | {"ledger_facts"}),
    # Of the training, which the forks continue.
    "training.weight_decay": (0.1, JOBS | ALL_FORKS),
    "training.lr_max": (0.02, JOBS | ALL_FORKS | {"schedule", "ledger_facts"}),
    "training.seed": (1, JOBS),
    "training.batch_size": (8, JOBS | {"tokens_per_step", "ledger_facts"}),
    "training.save_every": (100, {"save_every"}),
    "architecture.num_heads": (8, JOBS),
    "tokenizer.vocab_size": (600, JOBS | {"vocab_size"}),
    "grid.powers_of_two": (9, {"steps", "probe_tables", "job 0 due", "ledger_facts"}),
    # Of the probe, which audit and forks share.
    "probe.batch_size": (8, {"probe"}),
    "probe.resamples": (500, {"probe"}),
    "probe.low_bit": ("int4_g128", {"probe"}),
    "device": ("cuda", {"probe"}),
    "probe.steps_per_job": (11, {"probe_tables"}),
    # Of the rest.
    "kurtosis.layers": ("blocks+head", {"kurtosis_layers"}),
    "phases.resamples": (100, {"phase_resamples"}),
    "text.seed": (1, {"text"}),
    "batches.validation.sequences": (128, {"batches"}),
    "label": ("another", LABELS),
    "is_paper_model": (True, LABELS),
    "threads": (2, set()),
}


@pytest.mark.parametrize("path", KEYS)
def test_a_key_moves_the_parameters_that_read_it_and_no_other(path):
    value, expected = KEYS[path]
    assert moved_by("mini", path, value) == expected


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("repo", "EleutherAI/pythia-70m", {"repo", "hub_repo"}),
        ("integrity.duplicate", "warn", {"integrity"}),
        ("tokenizer.repo", "EleutherAI/pythia-70m", {"tokenizer_source"}),
        ("tokenizer.revision", "step3000", {"tokenizer_source"}),
        # A hub suite is trained already: its training section describes what the forks do.
        ("training.seed", 1, set()),
        ("training.weight_decay", 0.0, ALL_FORKS),
        # Enough documents for the batches are taken from the hub.
        ("batches.train.sequences", 1000, {"batches", "text"}),
        ("batches.validation.document_start", True, {"batches", "text"}),
        ("batches.validation.longest_document", 5000, {"batches", "text"}),
        ("batches.validation.end_of_text", False, {"batches"}),
        ("batches.validation.sha256", "0" * 64, {"batches"}),
        ("text.characters_per_token", 9, {"text"}),
        ("tokenizer.end_of_text", "</s>", {"vocabulary"}),
        ("architecture.vocab_size", 50_432, {"vocabulary"}),
        ("fork.schedules.sgdr.period", 5000, {"fork sgdr", "ledger_facts"}),
    ],
)
def test_a_key_of_a_hub_suite_moves_what_reads_it(path, value, expected):
    assert moved_by("pythia-160m", path, value) == expected


def test_a_quantizer_that_the_suite_does_not_probe_moves_nothing():
    config = copy.deepcopy(CONFIG)
    config["quantizers"]["int4_g128"]["bits"] = 3
    assert parameters(plan_of("mini", config)) == parameters(MINI)
    assert plan_of("pythia-160m", config).probe != PYTHIA.probe


def test_roles_name_the_two_quantizers():
    assert MINI.probe["roles"] == {"int4_g64": "low_bit", "int8_channel": "high_bit"}
    assert MINI.probe["quantizers"]["int4_g64"] == CONFIG["quantizers"]["int4_g64"]
    assert PYTHIA.probe["roles"] == {"int4_g128": "low_bit", "int8_channel": "high_bit"}


def test_the_installed_versions_of_the_corpus_are_part_of_its_parameters():
    assert set(MINI.text["installed"]) == {"numpy", "scipy", "pandas", "matplotlib"}
    assert all(MINI.text["installed"].values())


def test_parameters_are_copies():
    """Changing what a job was handed may not change the configuration."""
    before = copy.deepcopy(CONFIG)
    MINI.probe["quantizers"]["int4_g64"]["bits"] = 2
    MINI.fork_settings("oli")["definition"]["first"] = "bump"
    MINI.pretraining_jobs[0].settings["architecture"]["num_layers"] = 9
    assert before == CONFIG


def test_final_outputs_are_files_of_the_suite():
    outputs = final_outputs(
        MINI, tables=["table1"], figures=["fig1"], notebooks={"tour": ["forks.csv"]}
    )
    assert len(outputs) == len(set(outputs))
    assert all(path.startswith("results/mini/") for path in outputs)
    for name in ("audit.csv", "claims.md", "tables/table1.tex", "figures/fig1.svg",
                 "notebooks/tour.html"):  # fmt: skip
        assert f"results/mini/{name}" in outputs


# Text of files


def text_plan(validation, train, **batches) -> SuitePlan:
    config = copy.deepcopy(CONFIG)
    suite = config["suites"]["pythia-160m"]
    suite["text"] = {"source": "files", "validation": validation, "train": train}
    suite["batches"]["validation"] = {"sequences": 10, "length": 20} | batches
    return plan_of("pythia-160m", config)


def test_the_text_that_is_wanted_is_eight_characters_for_a_token():
    assert PYTHIA.text["wanted"] == {
        "validation": {"amount": 8 * 128 * 512}, "train": {"amount": 8 * 120_000 * 2048},
    }  # fmt: skip
    assert "characters_per_token" not in PYTHIA.text["text"]
    starts = text_plan([], [], document_start=True).text["wanted"]["validation"]
    assert starts == {"amount": 10, "document_of": 8 * 20}
    short = text_plan([], [], longest_document=30).text["wanted"]["validation"]
    assert short == {"amount": 2 * 8 * 200, "longest": 8 * 30}


def test_a_local_file_is_an_input_where_nothing_can_come_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    hub = {"repo": "a/b", "file": "c.txt"}
    a, b, gone = ({"path": f"{name}.txt"} for name in ("a", "b", "gone"))
    assert text_plan([a, b], [b]).text_files == ["a.txt", "b.txt"]
    assert text_plan([gone, b], [b, a]).text_files == ["b.txt"]
    assert text_plan([hub, a], [gone, hub, a]).text_files == []
    assert PYTHIA.text_files == MINI.text_files == []
    with pytest.raises(ConfigError) as error:
        _ = text_plan([a], [gone, {"path": "gone.jsonl"}]).text_files
    assert str(error.value) == (
        "config key suites.pythia-160m.text.train: no such file: gone.txt, gone.jsonl"
    )


def test_the_vocabulary_is_what_the_suite_says_of_it():
    assert PYTHIA.vocabulary == {"model_vocabulary": 50_304}
    assert MINI.vocabulary == {}
