import json
import math
import re
import shutil
from dataclasses import astuple
from html.parser import HTMLParser

import pytest

from solgym.baselines.comparison import TargetFigures, compare
from solgym.baselines.comparison_page import comparison_page, write_comparison
from solgym.baselines.comparison_plots import draw_curves, draw_final, draw_improvement, looks_of
from solgym.baselines.recorded_runs import find_traces, read_run
from solgym.errors import InvalidOption, InvalidTrace
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.traces import FIRST, SECOND, write_run, write_two_methods


@pytest.fixture
def two_methods(tmp_path):
    return write_two_methods(tmp_path / "runs")


def approximately(figure):
    """Equal but for the rounding of logarithms."""
    return pytest.approx(figure, abs=1e-9)


def test_a_run_is_a_series_of_the_best_score_so_far(tmp_path):
    run = read_run(write_run(tmp_path / "run", [None, 2.0, 0.5, 1.0, 0.125]))
    # Failed, slower than the baseline, a quarter of the gap, no better, three quarters.
    assert run.scores == approximately((0, 0, 0, 0.25, 0.25, 0.75))
    assert run.elapsed_s == (0, 1, 2, 3, 4, 5)
    assert (run.best_s, run.failed, run.measurements) == (0.125, 1, 5)


def test_scores_can_be_asked_for_by_measurements_and_by_seconds(tmp_path):
    run = read_run(write_run(tmp_path / "run", [0.5, 0.25], elapsed_s=[10, 30]))
    assert [run.score_at("measurements", n) for n in (0, 1, 2, 9)] == approximately([0, 0.25, 0.5, 0.5])
    assert [run.score_at("seconds", s) for s in (0, 9.9, 10, 29, 30)] == approximately(
        [0, 0, 0.25, 0.25, 0.5]
    )
    assert run.spent_until("measurements", 0.3) == 2
    assert run.spent_until("seconds", 0.3) == 30
    assert run.spent_until("seconds", 0.9) == math.inf


def test_unstable_trials_count_as_failed(tmp_path):
    path = write_run(tmp_path / "run", [0.5])
    path.write_text(path.read_text().replace('"status":"ok"', '"status":"unstable"').replace(
        '"status":"unstable"', '"status":"ok"', 1))  # fmt: skip
    run = read_run(path)
    assert (run.scores, run.failed, run.best_s) == ((0, 0), 1, None)


def test_a_baseline_that_ran_into_the_time_limit_counts_as_that_long(tmp_path):
    late = Measurement.failed(Status.TIMEOUT, "too slow")
    run = read_run(write_run(tmp_path / "run", [60 / 4], baseline=late, sol_s=60 / 16))
    assert run.scores == approximately((0, 0.5))


def test_the_winner_and_the_expert_are_those_timed_again(tmp_path):
    run = read_run(write_run(tmp_path / "run", [0.25], ending=[("final", 0.5), ("expert", 0.125)]))
    assert (run.retimed, run.expert) == approximately((0.25, 0.75))
    assert run.scores[-1] == approximately(0.5)


def test_the_figures_equal_those_worked_out_by_hand(two_methods):
    found = compare([two_methods], target=2 / 3)
    assert found.methods == ("random", "tpe")
    assert found.common_tasks == (FIRST, SECOND)
    first, second = found.tasks
    # One run of the first task went on for a fifth measurement; two ended after 4 seconds.
    assert first.budget == {"measurements": 4, "seconds": 4}
    assert astuple(first.methods["random"].final["measurements"]) == approximately((0.375, 0.3125, 0.4375))
    assert astuple(first.methods["tpe"].final["measurements"]) == approximately((0.625, 0.5625, 0.6875))
    assert astuple(first.methods["tpe"].final["seconds"]) == approximately((0.5, 0.5, 0.5))
    assert first.best_known == approximately(0.75)
    assert second.methods["random"].final["seconds"].median == approximately(0.25)
    assert second.methods["tpe"].final["seconds"].median == approximately(1.0)

    # Random ends at 0.5, 0.25, 0.5 and 0; tpe at 0.75, 0.5, 1 and 1. Ends: see test_statistics.
    overall = found.overall
    assert astuple(overall["random"].final["measurements"]) == approximately((0.375, 0.125, 0.5))
    assert astuple(overall["tpe"].final["measurements"]) == approximately((0.875, 0.75, 0.875))
    assert overall["tpe"].final["seconds"].value == approximately((0.5 + 1) / 2)
    improvement = found.improvement["measurements"]
    assert astuple(improvement["tpe"]["random"]) == approximately((0.9375, 0.75, 1.0))
    assert astuple(improvement["random"]["tpe"]) == approximately((0.0625, 0.0, 0.25))


def test_curves_are_medians_and_quartiles_at_each_measurement(two_methods):
    curve = compare([two_methods]).tasks[0].methods["random"].curves["measurements"]
    # From (0, .25, .25, .5, .5) and (0, 0, 0, .25, .25).
    assert curve.spent == (0, 1, 2, 3, 4)
    assert curve.middle == approximately((0, 0.125, 0.125, 0.375, 0.375))
    assert curve.low == approximately((0, 0.0625, 0.0625, 0.3125, 0.3125))
    assert curve.high == approximately((0, 0.1875, 0.1875, 0.4375, 0.4375))


def test_curves_against_seconds_are_cut_at_the_shortest_run(two_methods):
    curve = compare([two_methods]).tasks[0].methods["tpe"].curves["seconds"]
    at = dict(zip(curve.spent, curve.middle, strict=True))
    assert curve.spent[-1] == 4
    # Seed 0 has 0.5 from 3 s on; seed 1 has 0.25 from 2 s and 0.5 from 4 s.
    assert (at[1.0], at[2.0], at[3.0], at[4.0]) == approximately((0, 0.125, 0.375, 0.5))


def test_reaching_the_target_counts_runs_that_never_do_as_infinitely_long(two_methods):
    first, second = compare([two_methods], target=2 / 3 - 1e-9).tasks
    # The target is 0.5. Random: after 3 measurements, and never; tpe: after 1 and 2, which took 3 s and 4 s.
    assert first.methods["random"].target["measurements"] == TargetFigures(2, 1, None)
    assert first.methods["tpe"].target["measurements"] == TargetFigures(2, 2, 1.5)
    assert first.methods["tpe"].target["seconds"] == TargetFigures(2, 2, 3.5)
    # There it is 2/3, which only a full gap exceeds.
    assert second.methods["random"].target["measurements"] == TargetFigures(2, 0, None)
    assert second.methods["tpe"].target["measurements"] == TargetFigures(2, 2, 2)


def test_nobody_reaches_a_target_beyond_the_common_budget(tmp_path):
    write_run(tmp_path / "short", [0.5], tuner="random")
    write_run(tmp_path / "long", [0.5, 0.125], tuner="tpe")
    (task,) = compare([tmp_path]).tasks
    assert task.best_known == approximately(0.75)
    assert task.methods["tpe"].target["measurements"] == TargetFigures(1, 0, None)


def test_the_data_hold_every_figure(two_methods, tmp_path):
    found = compare([two_methods])
    files = write_comparison(found, tmp_path / "out")
    data = json.loads(files["data"].read_text())
    assert data["overall"]["tpe"]["final"]["measurements"]["value"] == approximately(0.875)
    assert data["improvement"]["seconds"]["tpe"]["random"] is not None
    assert data["tasks"][0]["methods"]["random"]["curves"]["measurements"]["middle"][-1] == approximately(
        0.375
    )
    assert len(data["runs"]) == 8
    assert data["runs"][0]["final"]["measurements"] == approximately(0.5)


# What is read, grouped and left out


def test_a_folder_with_both_forms_of_a_trace_counts_once(tmp_path):
    plain = write_run(tmp_path / "run", [0.5])
    shutil.copy(write_run(tmp_path / "other", [0.5], compressed=True), plain.parent)
    assert find_traces([tmp_path / "run", tmp_path / "run"]) == (plain,)


def test_compressed_traces_are_equal_to_plain_ones(tmp_path):
    plain = read_run(write_run(tmp_path / "a", [0.5, 0.25]))
    compressed = read_run(write_run(tmp_path / "b", [0.5, 0.25], compressed=True))
    assert plain.digest == compressed.digest
    assert plain.scores == compressed.scores


def test_copies_and_runs_without_a_trial_are_left_out(tmp_path):
    write_run(tmp_path / "a", [0.5])
    write_run(tmp_path / "b", [0.5], compressed=True)
    write_run(tmp_path / "c", [], seed=1)
    found = compare([tmp_path])
    assert len(found.runs) == 1
    assert "copy" in found.notes[0]
    assert "nothing was tried" in found.notes[1]


def test_the_mode_is_named_only_where_a_tuner_ran_in_two_on_one_task(tmp_path):
    write_run(tmp_path / "a", [0.5], mode="knobs")
    write_run(tmp_path / "b", [0.5], mode="primitive", task=SECOND)
    assert compare([tmp_path]).methods == ("random",)
    write_run(tmp_path / "c", [0.5], mode="primitive")
    assert compare([tmp_path]).methods == ("random, knobs", "random, primitive")


def test_runs_that_were_given_candidates_are_a_method_of_their_own(tmp_path):
    write_run(tmp_path / "a", [0.5])
    write_run(tmp_path / "b", [0.5], initial=("d1",))
    write_run(tmp_path / "c", [0.5], initial=("d2",), seed=1)
    found = compare([tmp_path])
    assert found.methods == ("random", "random, seeded")
    assert any("different candidates to begin with" in note for note in found.notes)


def test_tasks_are_sorted_by_their_numbers(two_methods):
    assert [task.label for task in compare([two_methods]).tasks] == [FIRST, SECOND]  # 8 before 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "cpu-b"), ("toolchain", "gcc"), ("profile", "q"), ("target", "gpu"), ("threads", 2),
        ("options", {"program": "own.mlir"}),
    ],
)  # fmt: skip
def test_runs_made_under_different_conditions_are_refused_unless_told_otherwise(tmp_path, field, value):
    write_run(tmp_path / "a", [0.5])
    write_run(tmp_path / "b", [0.5], tuner="tpe", **{field: value})
    with pytest.raises(InvalidTrace, match=rf"differ in {field}.*--anyway") as caught:
        compare([tmp_path])
    assert str(tmp_path / "b") in str(caught.value)
    (note,) = [note for note in compare([tmp_path], anyway=True).notes if field in note]
    assert "compared anyway" in note


def test_tasks_of_different_machines_may_stand_side_by_side(tmp_path):
    write_run(tmp_path / "a", [0.5])
    write_run(tmp_path / "b", [0.5], task=SECOND, device="cpu-b")
    assert compare([tmp_path]).machine["device"] == ("cpu-a", "cpu-b")


def test_what_makes_a_comparison_doubtful_is_said(tmp_path):
    write_run(tmp_path / "a", [0.5] * 2, budget_measurements=9)
    write_run(tmp_path / "b", [0.5] * 4, tuner="tpe", seed=1, package="0.0.9", baseline=_baseline(1.3))
    notes = " ".join(compare([tmp_path]).notes)
    for part in (
        "1 run not finished",
        "Budgets differ",
        "different seeds",
        "disturbed",
        "versions of solgym",
    ):
        assert part in notes


def _baseline(time_s):
    return Measurement(Status.OK, (time_s,), time_s, time_s, time_s, time_s)


def test_an_undisturbed_comparison_has_no_notes(tmp_path):
    for tuner in ("random", "tpe"):
        write_run(tmp_path / tuner, [0.5, 0.25], tuner=tuner)
    assert compare([tmp_path]).notes == ()


def test_a_run_that_tried_every_candidate_keeps_its_score(tmp_path):
    # It ended, as its finalists say, before its budget did.
    write_run(
        tmp_path / "a", [0.5, 0.25], tuner="exhaustive", budget_measurements=9, ending=[("final", 0.25)]
    )
    write_run(tmp_path / "b", [0.5] * 9)
    found = compare([tmp_path])
    assert found.tasks[0].budget["measurements"] == 9
    assert found.tasks[0].methods["exhaustive"].final["measurements"].median == approximately(0.5)
    assert not any("not finished" in note for note in found.notes)


def test_a_budget_in_seconds_ends_there_and_not_with_the_trial_that_ran_over(tmp_path):
    write_run(tmp_path / "a", [0.5, 0.25], elapsed_s=[4, 12], budget_measurements=None, budget_seconds=10)
    write_run(
        tmp_path / "b",
        [0.5, 0.25],
        elapsed_s=[4, 11],
        tuner="tpe",
        budget_measurements=None,
        budget_seconds=10,
    )
    (task,) = compare([tmp_path]).tasks
    assert task.budget["seconds"] == 10
    assert task.methods["tpe"].final["seconds"].median == approximately(0.25)


def test_tasks_that_not_every_method_ran_are_left_out_of_figures_over_tasks(tmp_path):
    write_run(tmp_path / "a", [0.5])
    write_run(tmp_path / "b", [0.5], tuner="tpe")
    write_run(tmp_path / "c", [0.5], task=SECOND)
    found = compare([tmp_path])
    assert found.common_tasks == (FIRST,)
    assert any(SECOND in note and "left out" in note for note in found.notes)


def test_tasks_without_headroom_are_left_out_of_figures_over_tasks(tmp_path):
    write_run(tmp_path / "a", [0.99], sol_s=0.98)
    write_run(tmp_path / "b", [0.5], task=SECOND)
    found = compare([tmp_path])
    assert found.common_tasks == (SECOND,)
    assert any("nothing to win" in note for note in found.notes)


def test_methods_that_share_no_task_are_shown_task_by_task(tmp_path):
    write_run(tmp_path / "runs/a", [0.5])
    write_run(tmp_path / "runs/b", [0.5], tuner="tpe", task=SECOND)
    found = compare([tmp_path / "runs"])
    assert found.overall == {}
    assert found.improvement == {}
    files = write_comparison(found, tmp_path / "out")
    assert "final" not in files
    assert "Over " not in files["page"].read_text()
    with pytest.raises(InvalidOption, match="no task"):
        draw_final(found)


def test_a_task_on_which_nothing_beat_the_baseline_has_no_target(tmp_path):
    write_run(tmp_path / "a", [None, 3.0])
    found = compare([tmp_path])
    assert found.tasks[0].target is None
    assert found.overall["random"].target == {}
    assert "no target" in comparison_page(found)


def test_mistakes_are_one_sentence_each(tmp_path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InvalidTrace, match=r"holds no trace\.jsonl"):
        compare([tmp_path / "nothing"])
    with pytest.raises(InvalidTrace, match="does not exist"):
        compare([tmp_path / "absent"])
    write_run(tmp_path / "old", [0.5], sol_s=None)
    with pytest.raises(InvalidTrace, match="speed of light"):
        compare([tmp_path / "old"])
    write_run(tmp_path / "empty", [])
    with pytest.raises(InvalidTrace, match="no run has tried"):
        compare([tmp_path / "empty"])
    with pytest.raises(InvalidOption, match="target of 0"):
        compare([tmp_path], target=0)
    broken = write_run(tmp_path / "broken", [0.5], compressed=True)
    broken.write_bytes(broken.read_bytes()[:-9])
    with pytest.raises(InvalidTrace, match="cannot decompress"):
        compare([broken.parent])


# The page


class _Page(HTMLParser):
    """What a page would fetch or run, its text, and whether every element is closed."""

    VOID = frozenset({"meta", "br", "hr", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self._attributes(attrs)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self._attributes(attrs)

    def _attributes(self, attrs):
        for name, value in attrs:
            assert not name.startswith("on"), "scripts in attributes"
            if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
                self.references.append(value)
            if name == "id":
                self.ids.append(value)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.references += re.findall(r"url\(([^)]*)\)|@import", data)
        self.words.append(data)


@pytest.fixture
def page(two_methods):
    return comparison_page(compare([two_methods]), command="solgym compare <runs>")


def test_the_page_asks_nobody_for_anything_and_runs_nothing(page):
    parsed = _Page(page)
    assert parsed.open == []
    assert not {"script", "link", "iframe", "object", "embed", "base", "img"} & set(parsed.tags)
    assert all(reference.startswith("#") for reference in parsed.references)
    assert {reference[1:] for reference in parsed.references} <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "//" not in page.replace("<!doctype html>", "")


def test_the_page_holds_the_figures_worked_out_by_hand(page):
    text = " ".join(_Page(page).words)
    for figure in ("0.375 [0.125, 0.500]", "0.875 [0.750, 0.875]", "0.94", "0.75 to 1.00"):
        assert figure in text
    assert "2 methods on 2 tasks" in text
    assert "<runs>" in text  # escaped in the source
    assert "8 runs" in text


def test_the_page_follows_the_reader_s_choice_of_light_or_dark(page):
    assert "prefers-color-scheme:dark" in page
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        assert "var(--ink)" in drawing
        assert not re.search(r"(?:fill|stroke): #(?!ffffff)", drawing), "a colour that would not follow"


def test_numbers_on_the_axes_of_a_drawing_are_whole(tmp_path):
    # Coordinates are rounded to save space; what is written on an axis must not be.
    write_run(tmp_path / "a", [0.5, 0.497])
    write_run(tmp_path / "b", [0.499, 0.498], tuner="tpe")
    found = compare([tmp_path])
    drawing = re.findall(r"<svg.*?</svg>", comparison_page(found), re.DOTALL)[1]
    (axes,) = draw_curves(found, "measurements").axes
    labels = {label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())}
    written = re.findall(r">(\d[\d.]*)</text>", drawing)
    assert len(written) > 4
    assert set(written) <= labels
    assert any(len(number) > len("0.25") for number in written)  # or nothing could have been lost


# The pictures


def test_every_task_and_all_tasks_together_have_a_panel(two_methods, tmp_path):
    figure = draw_curves(compare([two_methods]), "measurements", tmp_path / "curves.png")
    assert [axes.get_title("left") for axes in figure.axes] == ["all 2 tasks", FIRST, SECOND]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["random", "tpe"]


def test_one_task_needs_no_panel_over_tasks(tmp_path):
    write_run(tmp_path / "a", [0.5], ending=[("expert", 0.25)])
    figure = draw_curves(compare([tmp_path]), "seconds")
    assert [axes.get_title("left") for axes in figure.axes] == [FIRST]
    assert "expert" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_final_scores_are_drawn_best_at_the_top(two_methods):
    axes = draw_final(compare([two_methods])).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["random", "tpe"]  # from below
    markers = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [line.get_xdata()[0] for line in markers] == approximately([0.375, 0.875])


def test_probabilities_of_improvement_are_drawn_as_numbers(two_methods):
    at_measurements, at_seconds = draw_improvement(compare([two_methods])).axes
    assert {text.get_text() for text in at_measurements.texts} == {"0.06", "0.94"}
    # After 4 seconds tpe has 0.5 twice on the first task, which ties with random's 0.5: (3 of 4 + 1) / 2.
    assert {text.get_text() for text in at_seconds.texts} == {"0.12", "0.88"}


def test_methods_can_be_told_apart_without_colour():
    looks = looks_of([f"method {i}" for i in range(10)])
    assert len({look.marker for look in looks.values()}) == 10
    assert len({(look.colour, look.dashes) for look in looks.values()}) == 10


def test_files_that_cannot_be_written_are_one_sentence(two_methods, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match="cannot write to"):
        write_comparison(compare([two_methods]), tmp_path / "file")
