"""Suites that extend others, defaults, and the suites that come with the workflow."""

import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flatminima.config.checks import check_config
from flatminima.config.suites import merge, read_library, resolve_suites
from flatminima.errors import ConfigError
from flatminima.planning import SuitePlan
from tests.workflow import ROOT

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())
SCHEMA = yaml.safe_load((ROOT / "rules/schemas/config.schema.yaml").read_text())
LIBRARY = read_library(ROOT / "resources/suites")


def whole(suites, library=LIBRARY) -> dict:
    return resolve_suites(suites, library)


def plan_of(name: str, **kwargs) -> SuitePlan:
    return SuitePlan(name, whole(CONFIG["suites"])[name], CONFIG["quantizers"], **kwargs)


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
    for key in set(base) - set(change):
        assert merged[key] == base[key]
    for key, value in change.items():
        if not isinstance(value, dict):
            assert merged[key] == value
    assert merge(merged, change) == merged


def test_a_suite_takes_over_what_it_does_not_say():
    suites = CONFIG["suites"] | {
        "own": {"extends": "mini", "label": "mine", "training": {"lr_max": 0.02}, "threads": 2}
    }
    own, mini = whole(suites)["own"], CONFIG["suites"]["mini"]
    assert own["training"] == mini["training"] | {"lr_max": 0.02}
    assert own["threads"] == 2 and own["label"] == "mine" and "extends" not in own
    assert own["probe"] == mini["probe"] and own["probe"] is not mini["probe"]


def test_a_label_is_a_suites_own():
    suites = whole(CONFIG["suites"] | {"own": {"extends": "pythia-160m", "repo": "a/b"}})
    assert "label" not in suites["own"] and suites["own"]["is_paper_model"] is False
    with pytest.raises(ConfigError, match="suites.own lacks label"):
        check_config(CONFIG | {"suites": suites}, SCHEMA)


def test_a_grid_and_a_text_are_replaced_whole():
    own = {"extends": "mini", "label": "x", "grid": {"steps": [0, 40]}, "text": {"source": "files"}}
    section = whole(CONFIG["suites"] | {"own": own})["own"]
    assert section["grid"] == {"steps": [0, 40]} and section["text"] == {"source": "files"}


def test_a_key_set_to_nothing_is_left_out_and_can_be_said_again_below():
    suites = {
        "a": {"label": "a", "source": "x", "fork": {"start": 1, "steps": 2}, "deep": {"one": 1}},
        "b": {"extends": "a", "label": "b", "fork": None, "deep": {"one": None, "two": 2}},
        "c": {"extends": "b", "label": "c", "fork": {"start": 3}},
    }
    found = resolve_suites(suites, {})
    assert "fork" not in found["b"] and found["b"]["deep"] == {"two": 2}
    assert found["c"]["fork"] == {"start": 3}


def test_one_of_the_library_is_changed_under_its_own_name():
    suites = CONFIG["suites"] | {"pythia-70m": {"threads": 3}}
    changed = whole(suites)["pythia-70m"]
    assert changed["threads"] == 3 and changed["repo"] == "EleutherAI/pythia-70m"


def test_another_source_takes_over_no_places():
    own = {"extends": "pythia-160m", "label": "x", "source": "local", "pattern": "a/{step}"}
    section = whole(CONFIG["suites"] | {"own": own})["own"]
    assert "repo" not in section and section["grid"] == "discover"
    assert section["text"] == CONFIG["suites"]["pythia-160m"]["text"]


@pytest.mark.parametrize(
    ("suites", "line"),
    [
        ({"a": {"extends": "b"}}, "suites.a.extends: 'b' is not known; "),
        ({"a": {"extends": "pythia-160"}, "pythia-160m": {}}, "did you mean pythia-160m?"),
        ({"a": {"extends": "a"}}, "'a' extends it in turn (a -> a)"),
        ({"a": {"extends": "b"}, "b": {"extends": "c"}, "c": {"extends": "b"}},
         "'b' extends it in turn (a -> b -> c -> b)"),
        ({"a": {"extends": ["b"]}, "b": {}}, "suites.a.extends: ['b'] is not known"),
        ({"a": {"extends": "b"}, "b": 1}, "suites.a.extends: 'b' is not known"),
    ],
)  # fmt: skip
def test_extends_that_leads_nowhere_is_one_line(suites, line):
    with pytest.raises(ConfigError) as error:
        resolve_suites(suites, {})
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("suites", [None, 7, [], "mini"])
def test_what_is_no_mapping_is_left_to_the_schema(suites):
    assert resolve_suites(suites, LIBRARY) == suites
    assert resolve_suites({"a": suites}, {}) == {"a": suites}


# The library


def test_the_library_is_valid_beside_the_configuration():
    config = CONFIG | {"suites": whole(CONFIG["suites"])}
    check_config(config, SCHEMA)
    assert list(config["suites"])[:2] == ["mini", "pythia-160m"], "what a line names first"
    assert not set(LIBRARY) & set(CONFIG["suites"])


def test_every_library_suite_says_what_is_its_own():
    labels = [section["label"] for section in LIBRARY.values()]
    repos = [section["repo"] for section in LIBRARY.values()]
    assert len(set(labels)) == len(labels) and len(set(repos)) == len(repos)
    for name, section in LIBRARY.items():
        assert section["repo"].split("/")[1].lower().startswith(name[:6]), name


# Parameters as the Pythia repository's README gives them: non-embedding, from its table.
SIZES = {"70m": 18_915_328, "410m": 302_311_424, "1b": 805_736_448, "1.4b": 1_208_602_624,
         "2.8b": 2_517_652_480, "6.9b": 6_444_163_072, "12b": 11_327_027_200}  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_shapes_give_the_published_number_of_weights(size):
    """12 d^2 of matrices, 9 d of biases and 4 d of norms a block; 2 d of the last norm."""
    shape = whole(CONFIG["suites"])[f"pythia-{size}"]["architecture"]
    d = shape["hidden_size"]
    assert shape["num_layers"] * (12 * d * d + 13 * d) + 2 * d == SIZES[size]


def test_suites_of_pythia_are_planned_without_a_network():
    for name in ("pythia-14m", "pythia-12b-deduped", "pythia-410m-seed9", "pythia-160m-data-seed2"):
        plan = plan_of(name)
        assert len(plan.steps) == 154 and plan.last == 143000
        assert plan.revision(512) == "step512"
        assert plan.tokens_per_step == 2_097_152 and plan.schedule["warmup_steps"] == 1430
        assert not plan.has_forks
    assert plan_of("pythia-410m-seed9").section["training"]["seed"] == 9
    assert "second epoch" in plan_of("pythia-70m-deduped").section["label"]


@pytest.mark.parametrize("name", ["olmo-2-1b", "olmo-2-1b-early", "olmo-2-7b"])
def test_a_suite_without_a_frozen_table_says_how_to_make_one(name, tmp_path):
    plan = plan_of(name, tables=str(tmp_path))
    with pytest.raises(ConfigError, match=f"make freeze SUITE={name} lists them"):
        plan.steps  # noqa: B018
    assert plan.schedule is None and plan.tokens_per_step in (2_097_152, 4_194_304)


def test_a_frozen_table_is_the_grid(tmp_path):
    table = "step,branch,commit\n0,stage1-step0-tokens0B,aa\n10000,stage1-step10000-tokens21B,bb\n"
    Path(tmp_path, "olmo-2-1b.csv").write_text(table)
    plan = plan_of("olmo-2-1b", tables=str(tmp_path))
    assert plan.steps == [0, 10000] and plan.last == 10000 and plan.spacing == 1
    assert plan.revision("10000") == "stage1-step10000-tokens21B"
    assert plan.facts["last"] == 10000
    with pytest.raises(ConfigError, match="step 5 is not a revision of this suite"):
        plan.revision(5)
