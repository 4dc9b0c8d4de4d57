"""The plots: each registered rep has its place, a bound its line, a death its mark, and the words to read it by."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from told import Attempt, spec
from told_attempts import empty, failing, interrupted, passing

from templates.plots import HEIGHT, WIDTH, _label_place, rep_plots
from templates.story import story


def plots_of(attempt: Attempt) -> list[ElementTree.Element]:
    text = rep_plots(story(attempt.ledger, "soak-n12", attempt.number))
    return list(ElementTree.fromstring(f"<div>{text}</div>"))


def marks(figure: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [item for item in figure.iter() if item.get("class") == kind]


def test_each_plot_has_a_title_and_a_description_that_its_label_names() -> None:
    for figure in plots_of(passing()):
        svg = figure.find("svg")
        assert svg is not None
        labels = (svg.get("aria-labelledby") or "").split()
        ids = {item.get("id"): item.text for item in svg if item.tag in {"title", "desc"}}
        assert sorted(labels) == sorted(ids)
        assert all(ids.values())
        assert svg.get("role") == "img"


def test_a_clean_attempt_shows_twelve_reps_and_two_hollow_controls() -> None:
    for figure in plots_of(passing()):
        assert len(marks(figure, "rep")) == 12
        assert len(marks(figure, "control")) == 2
        assert not marks(figure, "unseen")
        assert not marks(figure, "death")


def test_what_was_not_observed_is_an_open_square_in_a_strip_of_its_own_and_never_a_figure() -> None:
    for attempt in (failing(), interrupted()):
        for figure in plots_of(attempt):
            (axis,) = marks(figure, "axis")
            (strip,) = marks(figure, "strip")
            zero, top = float(axis.get("y1") or ""), float(strip.get("y") or "")
            bottom = top + float(strip.get("height") or "")
            assert zero < top
            for sign in marks(figure, "unseen"):
                assert sign.tag == "rect"
                assert top <= float(sign.get("y") or "") <= float(sign.get("y") or "") + 6 <= bottom
            for sign in [*marks(figure, "rep"), *marks(figure, "control"), *marks(figure, "failed")]:
                assert float(sign.get("cy") or 0) <= zero


def legend(figure: ElementTree.Element) -> list[str]:
    (found,) = marks(figure, "legend")
    return ["".join(item.itertext()).strip() for item in found]


def test_the_legend_names_the_signs_that_a_panel_has_and_no_other() -> None:
    assert [legend(figure) for figure in plots_of(passing())] == [["rep", "control"]] * 2
    burst, total = plots_of(failing())
    assert legend(burst) == ["rep", "control", "handoff without this figure", "not observed"]
    assert legend(total) == ["rep", "control", "not acknowledged", "not observed"]


def test_without_anything_unobserved_there_is_no_strip() -> None:
    for figure in plots_of(passing()):
        assert not marks(figure, "strip")


def test_a_death_is_marked_at_its_rep_and_what_never_ran_has_its_place() -> None:
    burst, total = plots_of(failing())
    assert len(marks(burst, "death")) == 1
    assert len(marks(burst, "failed")) == 1
    assert marks(burst, "failed")[0].tag == "path"
    assert marks(total, "failed")[0].tag == "circle"
    unseen = marks(burst, "unseen")
    assert len(unseen) == 4  # reps 10 to 12 and the second control
    cross = re.match(r"M([0-9.]+)", marks(burst, "failed")[0].get("d") or "")
    assert cross is not None
    assert float(cross.group(1)) + 4 == float(marks(burst, "death")[0].get("x1") or "")


def test_a_bound_is_a_line_where_it_fits_and_words_where_it_lies_far_above() -> None:
    burst, total = plots_of(passing())
    assert len(marks(burst, "bound")) == 1
    assert marks(burst, "bound-text")[0].text == "bound >= 3"
    assert not marks(total, "bound")
    assert "bound <= 120 lies above this scale" in "".join(total.itertext())


def test_a_higher_rate_stands_higher_and_all_marks_lie_inside() -> None:
    burst, _ = plots_of(passing())
    fifth = next(item for item in marks(burst, "rep") if "rep 5 of" in "".join(item.itertext()))
    first = next(item for item in marks(burst, "rep") if "rep 1 of" in "".join(item.itertext()))
    assert float(fifth.get("cy") or "") > float(first.get("cy") or "")  # 8.98 below 9.93
    for item in [*marks(burst, "rep"), *marks(burst, "control")]:
        assert 0 < float(item.get("cx") or "") < WIDTH
        assert 0 < float(item.get("cy") or "") < HEIGHT


def test_an_attempt_without_a_handoff_has_no_plot() -> None:
    assert rep_plots(story(empty().ledger, "soak-n12", 1)) == ""


def test_an_interrupted_rep_is_a_cross() -> None:
    burst, _ = plots_of(interrupted())
    assert len(marks(burst, "failed")) == 1


def test_a_thousand_reps_still_have_few_labels() -> None:
    resolved = spec()
    resolved["stage"][1]["reps"] = 1000
    attempt = Attempt(resolved=resolved)
    for rep in range(1, 301):
        attempt.rep(rep, 40)
    burst, _ = plots_of(attempt)
    assert len(marks(burst, "rep")) == 300
    labels = [item for item in burst.iter("text") if item.get("text-anchor") == "middle"]
    assert len(labels) <= 16


def test_a_bounds_label_covers_no_point() -> None:
    y = 100.0
    assert _label_place(y, 60, []) == (float(WIDTH - 10), y - 4)
    at_the_end = [(WIDTH - 15.0, y - 8)]
    right, baseline = _label_place(y, 60, at_the_end)
    assert baseline == y - 4
    assert right < WIDTH - 15
    everywhere_above = [(float(x), y - 8) for x in range(0, WIDTH, 10)]
    assert _label_place(y, 60, everywhere_above) == (float(WIDTH - 10), y + 12)
