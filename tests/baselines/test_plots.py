from itertools import pairwise

import pytest

from solgym.baselines.plots import ReferenceTime, draw_progress, format_seconds
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import record

FAILED = Measurement.failed(Status.ILLEGAL, "refused").to_json()
REFERENCES = [ReferenceTime("baseline", 1e-1), ReferenceTime("speed of light", 1e-3)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.5, "1.50 s"),
        (0.1584, "158 ms"),
        (1.0364e-3, "1.04 ms"),
        (99.96e-6, "100 µs"),
        (2.5e-8, "25.0 ns"),
        (3e-10, "0.30 ns"),
    ],
)
def test_durations_have_three_digits_and_a_unit_that_suits(seconds, text):
    assert format_seconds(seconds) == text


def test_a_progress_plot_has_every_trial_the_staircase_and_the_references(tmp_path):
    times = [5e-3, 7e-3, 2e-3, 3e-3]
    trials = [record(i, t) for i, t in enumerate(times)] + [record(4, measurement=FAILED)]
    figure = draw_progress("title", trials, REFERENCES, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    best = lines["best so far"]
    assert list(best.get_xdata()) == [1, 3, 5]
    assert list(best.get_ydata()) == [5e-3, 2e-3, 2e-3]
    assert list(lines["failed trial"].get_xdata()) == [5]
    assert axes.collections[0].get_offsets().tolist() == [[i, t] for i, t in enumerate(times, 1)]
    texts = [text.get_text() for text in axes.texts]
    assert any("baseline" in text and "100 ms" in text for text in texts)
    assert any("best" in text and "2.00 ms" in text for text in texts)


def test_labels_of_close_lines_do_not_overlap():
    close = [ReferenceTime(f"peer {i}", 1e-3 * (1 + 1e-4 * i)) for i in range(6)]
    figure = draw_progress("title", [record(0, 1e-1)], close)
    heights = sorted(text.xyann[1] for text in figure.axes[0].texts)
    assert all(b - a > 0.05 for a, b in pairwise(heights))
    assert heights[0] >= -1e-9
    assert heights[-1] <= 1 + 1e-9


def test_a_run_in_which_everything_failed_can_be_drawn():
    assert draw_progress("title", [record(0, measurement=FAILED)], REFERENCES)


def test_nothing_to_draw_and_nowhere_to_write_are_one_sentence_each(tmp_path):
    with pytest.raises(InvalidOption, match="nothing to draw"):
        draw_progress("title", [], [])
    with pytest.raises(InvalidOption, match="cannot write"):
        draw_progress("title", [record(0)], REFERENCES, tmp_path / "missing" / "plot.png")
