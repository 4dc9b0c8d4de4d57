from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from metric_double import METRICS

from campaigns import registry
from campaigns.spec import SoakStage, resolve
from campaigns.terms import LaneTerms, check_against_lane
from receipts.errors import InputError


def test_every_shipped_spec_is_valid_and_found_by_its_own_id() -> None:
    loaded = registry.shipped(METRICS)
    assert [item.spec.id for item in loaded] == ["soak-n12", "soak-n12-muse-glimmer"]
    for item in loaded:
        assert registry.find(item.spec.id, METRICS).raw == item.raw


def test_the_field_spec_holds_the_chapters_real_cell() -> None:
    spec = registry.find("soak-n12-muse-glimmer", METRICS).spec
    soak = spec.stage("soak")
    assert isinstance(soak, SoakStage)
    cell = tomllib.loads(registry.find("soak-n12-muse-glimmer", METRICS).raw.decode())["stage"][1]
    assert (cell["prompt"]["tokens"], cell["control"]["tokens"], soak.reps) == (130815, 130815, 12)
    assert soak.watchdog_s == 900 < soak.rep_deadline_s
    assert {item.name: item.bound_text for item in spec.criteria}["burst-floor"] == ">= 3"
    assert check_against_lane(spec, LaneTerms("after", "native", 900, 131072), METRICS) == ()


def test_a_misspelt_id_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'soak-n12'"):
        registry.find("soak-n21", METRICS)


def test_a_change_since_registration_is_shown_in_either_form(tmp_path: Path) -> None:
    shipped = registry.find("soak-n12", METRICS)
    edited = tmp_path / "mine.toml"
    edited.write_bytes(shipped.raw.replace(b"value = 3.0", b"value = 2.5"))
    mine = registry.find(str(edited), METRICS)
    assert "+value = 2.5" in registry.raw_difference(shipped.raw, mine.raw)
    assert '+   "value": "2.5",' in registry.resolved_difference(resolve(shipped.spec), resolve(mine.spec))
    assert registry.raw_difference(shipped.raw, shipped.raw) == []
    assert mine.spec_sha256 != shipped.spec_sha256


def test_a_change_is_told_in_one_line_by_the_names_of_stages_and_criteria(tmp_path: Path) -> None:
    shipped = registry.find("soak-n12", METRICS)
    edited = tmp_path / "mine.toml"
    edited.write_bytes(shipped.raw.replace(b"value = 3.0", b"value = 2.5").replace(b"value = 120", b"value = 90"))
    old, new = (resolve(item.spec) for item in (shipped, registry.find(str(edited), METRICS)))
    words = registry.changes_in_words(old, new)
    assert words == "changed: criterion.burst-floor.value 3 -> 2.5; criterion.rep-time.value 120 -> 90"
    assert registry.changes_in_words(old, old) == "changed: only how it is written; every value is the same"
    turned = {**old, "criterion": old["criterion"][::-1]}
    assert registry.changes_in_words(old, turned).startswith("changed: criterion order twelve-acknowledged, ")
    less = {**old, "criterion": old["criterion"][1:]}
    assert registry.changes_in_words(old, less) == "changed: criterion.twelve-acknowledged given -> none"
    many = {**old, **dict.fromkeys(("title", "question", "family", "id", "schema"), "x")}
    assert registry.changes_in_words(old, many).endswith("; and 1 more")
    assert "\\x1b" in registry.changes_in_words(old, {**old, "title": "\x1b[31m"})
