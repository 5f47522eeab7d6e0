"""Suites: inheritance, defaults, the suites that come with the workflow, and grids."""

import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flatminima.config.keys import EvenGrid, ListedGrid
from flatminima.config.loading import (
    complete_config,
    merge,
    read_config,
    read_library,
    resolve_suites,
)
from flatminima.config.plan import facts, schedule, tokens_per_step
from flatminima.config.suites import Suite, chunk_names, parse_range, range_name
from flatminima.errors import ConfigError
from tests.test_config import CONFIG

LIBRARY = read_library()


CHECKED = complete_config(CONFIG)


def suite_of(name: str, **kwargs) -> Suite:
    return Suite(name, CHECKED.suites[name], CHECKED.quantizers, **kwargs)


MAPPINGS = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
SECTIONS = st.dictionaries(st.sampled_from("abc"), MAPPINGS)


@given(SECTIONS, SECTIONS)
def test_a_merge_keeps_keys_that_the_change_does_not_have(base, change):
    originals = copy.deepcopy((base, change))
    merged = merge(base, change)
    assert (base, change) == originals, "the arguments are unchanged"
    assert set(merged) == set(base) | set(change)
    assert all(merged[key] == base[key] for key in set(base) - set(change))
    for key, setting in change.items():
        assert isinstance(setting, dict) or merged[key] == setting
    assert merge(merged, change) == merged
    assert merge(base, change, replaced="abc") == base | change


def test_sections_that_cannot_be_mixed_are_replaced(tmp_path):
    """The same rule for a file over config.yaml and for ``extends``; see configuration.md."""
    files = {"source": "files", "validation": [{"path": "a.txt"}], "train": [{"path": "b.txt"}]}
    schedules = {"cosine": {"kind": "cosine"}, "oli": {"kind": "sgdr", "period": 400}}
    rival = {"kind": "constant"}
    changes = {
        "text": files,
        "training": {"lr_max": 0.02},
        "fork": {
            "schedules": schedules,
            "rivals": {"wsd": rival},
            "primary": {"comparison": "oli v cosine"},
            "amplitudes": None,
        },
    }
    mine = {
        "quantizers": {"int4_g64": {"kind": "nf4"}},
        "suites": {"mini": changes, "own": {"extends": "mini", "label": "own", **changes}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(mine))
    config = read_config([path])
    assert config.quantizers["int4_g64"].kind == "nf4"
    for name in ("mini", "own"):
        suite = config.suites[name]
        assert suite.text.dump(exclude={"characters_per_token"})["train"][0]["path"] == "b.txt"
        assert suite.fork.schedules["oli"].dump() == schedules["oli"]
        assert suite.fork.rivals["wsd"].dump() == rival and "ema" in suite.fork.rivals
        assert suite.training.lr_max == 0.02 and suite.training.lr_min == 0.001
    path.write_text("suites: {pythia-160m: {grid: {steps: [70000, 100000]}, fork: , mechanism: }}")
    assert read_config([path]).suites["pythia-160m"].grid.revisions == [70000, 100000]
    path.write_text("suites: {mini: {grid: {last: 400}}}")
    with pytest.raises(ConfigError, match="suites.mini.grid lacks powers_of_two"):
        read_config([path])


def test_a_suite_inherits_everything_but_its_label_and_the_place_of_its_checkpoints():
    mini = CONFIG["suites"]["mini"]
    paper = CONFIG["suites"]["pythia-160m"]
    suites = {
        "own": {
            "extends": "mini",
            "label": "mine",
            "training": {"lr_max": 0.02},
            "threads": 2,
            "grid": {"steps": [0, 40]},
            "fork": None,
        },
        "again": {"extends": "own", "fork": {"start": 3}},
        "seed": {"extends": "pythia-160m", "repo": "a/b"},
        "here": {"extends": "pythia-160m", "label": "x", "source": "local", "pattern": "a/{step}"},
        "pythia-70m": {"threads": 3},  # changes a suite of the library
    }
    complete = resolve_suites(suites | CONFIG["suites"], LIBRARY)
    own_suite = complete["own"]
    assert own_suite["training"] == mini["training"] | {"lr_max": 0.02}
    assert (
        own_suite["threads"] == 2
        and own_suite["label"] == "mine"
        and own_suite["is_paper_model"] is False
    )
    assert own_suite["grid"] == {"steps": [0, 40]}, "replaced"
    assert "fork" not in own_suite and "extends" not in own_suite
    assert complete["again"]["fork"] == {"start": 3}, "a removed section can be added again"
    assert own_suite["probe"] == mini["probe"] and own_suite["probe"] is not mini["probe"]
    assert list(complete)[:2] == ["mini", "own"], "a suite comes after the one that it extends"
    assert "label" not in complete["seed"] and complete["seed"]["is_paper_model"] is False
    assert "repo" not in complete["here"] and complete["here"]["grid"] == "discover"
    assert complete["here"]["text"] == paper["text"]
    changed = complete["pythia-70m"]
    assert changed["threads"] == 3 and changed["repo"] == "EleutherAI/pythia-70m"


def test_extends_without_a_suite_or_in_a_circle_gives_one_line():
    unknown = {"a": {"extends": "pythia-160"}, "pythia-160m": {}}
    circle = {"a": {"extends": "b"}, "b": {"extends": "c"}, "c": {"extends": "b"}}
    for suites, part in (
        (unknown, "'pythia-160' is not known; did you mean pythia-160m?"),
        (circle, "(a -> b -> c -> b)"),
    ):
        with pytest.raises(ConfigError) as error:
            resolve_suites(suites, {})
        assert part in str(error.value) and "\n" not in str(error.value)


def test_library_suites_differ_in_label_and_repo_and_pythias_need_no_network():
    hub = {name: section for name, section in LIBRARY.items() if "repo" in section}
    assert set(LIBRARY) & set(CONFIG["suites"]) == {"fresh"}, "these tests add it"
    for key in ("label", "repo"):
        assert len(hub) == len({section[key] for section in hub.values()}) > 60
    for name, section in hub.items():
        assert section["repo"].split("/")[1].lower().startswith(name[:6]), name
    for name in ("pythia-14m", "pythia-12b-deduped", "pythia-410m-seed9", "pythia-160m-data-seed2"):
        suite = suite_of(name)
        assert len(suite.steps) == 154 and suite.last == 143000
        assert suite.branch(512) == "step512" and suite.config.fork is None
        assert tokens_per_step(suite) == 2_097_152 and schedule(suite)["warmup_steps"] == 1430
    assert suite_of("pythia-410m-seed9").config.training.seed == 9
    assert "second epoch" in suite_of("pythia-70m-deduped").config.label


def test_the_grid_is_read_from_a_stored_table_or_an_error_names_make_freeze(tmp_path):
    suite = suite_of("olmo-2-1b", tables=str(tmp_path))
    with pytest.raises(ConfigError, match="make freeze SUITE=olmo-2-1b"):
        suite.steps  # noqa: B018
    assert schedule(suite) is None and tokens_per_step(suite) == 2_097_152
    table = "step,branch,commit\n0,stage1-step0-tokens0B,aa\n10000,stage1-step10000-tokens21B,bb\n"
    Path(tmp_path, "olmo-2-1b.csv").write_text(table)
    suite = suite_of("olmo-2-1b", tables=str(tmp_path))
    assert suite.steps == [0, 10000] and suite.last == 10000 and suite.spacing == 1
    assert suite.branch("10000") == "stage1-step10000-tokens21B"
    assert facts(suite)["last"] == 10000
    with pytest.raises(ConfigError, match="step 5 is not a revision of this suite"):
        suite.branch(5)
    listed = suite.config.model_copy(update={"grid": ListedGrid(steps=[0, 20_000])})
    suite = Suite("olmo-2-1b", listed, CHECKED.quantizers, str(tmp_path))
    assert suite.branch(0) == "stage1-step0-tokens0B"
    with pytest.raises(ConfigError, match=r"olmo-2-1b.grid: .*20000; nearest: 10000"):
        suite.branch(20_000)


# Grids and the names of their ranges

PYTHIA = {"powers_of_two": 10, "spacing": 1_000, "last": 143_000}
MINI = {"powers_of_two": 10, "spacing": 40, "last": 5_720}
POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
STEPS = EvenGrid(**PYTHIA).revisions


def test_the_grids_of_both_suites():
    for grid in (PYTHIA, MINI):
        even_steps = range(grid["spacing"], grid["last"] + 1, grid["spacing"])
        steps = EvenGrid(**grid).revisions
        assert steps == sorted({0, *POWERS, *even_steps}) and len(steps) == 154
    assert EvenGrid(powers_of_two=4, spacing=4, last=12).revisions == [0, 1, 2, 4, 8, 12]
    with pytest.raises(ValueError, match="last 143001: .*multiple of spacing 1000"):
        EvenGrid(powers_of_two=10, spacing=1_000, last=143_001)
    with pytest.raises(ValueError, match="powers_of_two 10: 2\\^9 is past 400"):
        EvenGrid(powers_of_two=10, spacing=40, last=400)


@given(st.data(), st.integers(1, 200), st.sampled_from([PYTHIA, MINI]))
def test_names_of_ranges_are_parsed_back_and_chunks_cover_the_grid_once(data, size, grid):
    steps = EvenGrid(**grid).revisions
    first, last = sorted(data.draw(st.lists(st.integers(0, 153), min_size=2, max_size=2)))
    name = range_name(steps[first : last + 1])
    assert parse_range(name, steps) == steps[first : last + 1]
    parts = [parse_range(name, steps) for name in chunk_names(steps, size)]
    assert sum(parts, []) == steps
    assert all(len(part) == size for part in parts[:-1])


def test_names_of_ranges():
    assert range_name([70_000]) == "step70000"
    assert range_name([60_000, 61_000]) == "step60000-step61000"
    assert parse_range("step256-step2000", STEPS) == [256, 512, 1_000, 2_000]


def test_mistaken_ranges_are_refused_with_a_valid_one():
    # Each range has exactly one name. Otherwise the same file would exist under two names.
    not_ranges = (
        *("", "70000", "step-1", "step1\n", "step1-2", "step1-step2-step4", "step0001"),
        "step１",  # a full-width digit
    )
    valid_parts = {name: "write step0 or step0-step143000" for name in not_ranges}
    valid_parts["step70001"] = "nearest: 70000 and 71000"
    valid_parts["step143001"] = "nearest: 143000"
    valid_parts["step2000-step1000"] = "write step1000-step2000"
    for name, part in valid_parts.items():
        with pytest.raises(ValueError) as error:
            parse_range(name, STEPS)
        assert str(error.value).endswith(part)
        assert "\n" not in str(error.value)
