"""Suites that extend others, defaults, those that come with the workflow, and their grids."""

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


def whole(suites) -> dict:
    return resolve_suites(suites, LIBRARY)


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
def test_a_merge_keeps_what_is_not_said_again(base, change):
    before = copy.deepcopy((base, change))
    merged = merge(base, change)
    assert (base, change) == before, "neither is altered"
    assert set(merged) == set(base) | set(change)
    assert all(merged[key] == base[key] for key in set(base) - set(change))
    assert all(merged[k] == value for k, value in change.items() if not isinstance(value, dict))
    assert merge(merged, change) == merged
    assert merge(base, change, whole="abc") == base | change


def test_what_would_be_half_of_one_and_half_of_another_is_replaced_whole(tmp_path):
    """Over config.yaml as where a suite extends another; see docs/configuration.md."""
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


def test_a_suite_takes_over_what_it_does_not_say_but_labels_and_places_are_its_own():
    mini, paper = (CONFIG["suites"][name] for name in ("mini", "pythia-160m"))
    suites = {
        "own": {"extends": "mini", "label": "mine", "training": {"lr_max": 0.02}, "threads": 2,
                "grid": {"steps": [0, 40]}, "fork": None},
        "again": {"extends": "own", "fork": {"start": 3}},
        "seed": {"extends": "pythia-160m", "repo": "a/b"},
        "here": {"extends": "pythia-160m", "label": "x", "source": "local", "pattern": "a/{step}"},
        "pythia-70m": {"threads": 3},  # one of the library, changed under its own name
    }  # fmt: skip
    found = whole(suites | CONFIG["suites"])
    own = found["own"]
    assert own["training"] == mini["training"] | {"lr_max": 0.02}
    assert own["threads"] == 2 and own["label"] == "mine" and own["is_paper_model"] is False
    assert own["grid"] == {"steps": [0, 40]}, "replaced whole"
    assert "fork" not in own and "extends" not in own
    assert found["again"]["fork"] == {"start": 3}, "what is left out can be said again below"
    assert own["probe"] == mini["probe"] and own["probe"] is not mini["probe"]
    assert list(found)[:2] == ["mini", "own"], "after the one that it extends"
    assert "label" not in found["seed"] and found["seed"]["is_paper_model"] is False
    assert "repo" not in found["here"] and found["here"]["grid"] == "discover"
    assert found["here"]["text"] == paper["text"]
    changed = found["pythia-70m"]
    assert changed["threads"] == 3 and changed["repo"] == "EleutherAI/pythia-70m"


def test_extends_that_leads_nowhere_is_one_line():
    for suites, line in (
        ({"a": {"extends": "pythia-160"}, "pythia-160m": {}}, "'pythia-160' is not known; did you"),
        ({"a": {"extends": "b"}, "b": {"extends": "c"}, "c": {"extends": "b"}},
         "'b' extends it in turn (a -> b -> c -> b)"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as error:
            resolve_suites(suites, {})
        assert line in str(error.value) and "\n" not in str(error.value)


def test_every_library_suite_says_what_is_its_own_and_those_of_pythia_need_no_network():
    hub = {name: section for name, section in LIBRARY.items() if "repo" in section}
    assert set(LIBRARY) & set(CONFIG["suites"]) == {"fresh"}, "as it is in these tests"
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


def test_a_frozen_table_is_the_grid_and_without_one_a_line_says_how_to_make_it(tmp_path):
    suite = suite_of("olmo-2-1b", tables=str(tmp_path))
    with pytest.raises(ConfigError, match="make freeze SUITE=olmo-2-1b lists them"):
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
        evenly = range(grid["spacing"], grid["last"] + 1, grid["spacing"])
        steps = EvenGrid(**grid).revisions
        assert steps == sorted({0, *POWERS, *evenly}) and len(steps) == 154
    assert EvenGrid(powers_of_two=4, spacing=4, last=12).revisions == [0, 1, 2, 4, 8, 12]
    with pytest.raises(ValueError, match="last 143001: .*multiple of spacing 1000"):
        EvenGrid(powers_of_two=10, spacing=1_000, last=143_001)
    with pytest.raises(ValueError, match="powers_of_two 10: 2\\^9 is past 400"):
        EvenGrid(powers_of_two=10, spacing=40, last=400)


@given(st.data(), st.integers(1, 200), st.sampled_from([PYTHIA, MINI]))
def test_ranges_survive_printing_and_parsing_and_chunks_cover_the_grid_once(data, size, grid):
    steps = EvenGrid(**grid).revisions
    first, last = sorted(data.draw(st.lists(st.integers(0, 153), min_size=2, max_size=2)))
    name = range_name(steps[first : last + 1])
    assert parse_range(name, steps) == steps[first : last + 1]
    parts = [parse_range(name, steps) for name in chunk_names(steps, size)]
    assert sum(parts, []) == steps
    assert all(len(part) == size for part in parts[:-1])


def test_names_of_ranges_and_mistaken_ones():
    assert range_name([70_000]) == "step70000"
    assert range_name([60_000, 61_000]) == "step60000-step61000"
    assert parse_range("step256-step2000", STEPS) == [256, 512, 1_000, 2_000]
    # Each revision has one name, so that one file never stands beside its double.
    bad = ("", "70000", "step-1", "step1\n", "step1-2", "step1-step2-step4", "step0001", "step１")
    mistakes = {name: f"{name!r} is no step or range; write step0 or step0-step143000"
                for name in bad}  # fmt: skip
    mistakes |= {
        "step70001": "step 70001 is not a revision of this suite; nearest: 70000 and 71000",
        "step143001": "step 143001 is not a revision of this suite; nearest: 143000",
        "step2000-step1000": "'step2000-step1000' runs backwards; write step1000-step2000",
    }
    for name, message in mistakes.items():
        with pytest.raises(ValueError) as error:
            parse_range(name, STEPS)
        assert str(error.value) == message
