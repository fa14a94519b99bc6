import math
import subprocess
import sys
from pathlib import Path

import pytest

from solgym.errors import InvalidOption
from solgym.hardware.profile import load_profile, published_profiles
from solgym.hardware.roofline import draw_roofline, save_figure
from tests.hardware.synthetic_profile import synthetic_profile

POINTS = [("baseline", 85.0, 2e9), ("best", 85.0, 90e9), ("speed of light", 85.0, 100e9)]


def _texts(figure: object) -> str:
    return "\n".join(t.get_text() for t in [*figure.texts, *figure.axes[0].texts])  # type: ignore[attr-defined]


def test_a_picture_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "roofline.png"
    draw_roofline(synthetic_profile(), POINTS, threads=1, path=path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_file_without_a_suffix_is_a_png_under_just_that_name(tmp_path: Path) -> None:
    draw_roofline(synthetic_profile(), POINTS, path=tmp_path / "picture")
    assert [path.name for path in tmp_path.iterdir()] == ["picture"]
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_saved_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = draw_roofline(synthetic_profile(), POINTS)
    with pytest.raises(InvalidOption, match="no picture format 'xyz'"):
        save_figure(figure, tmp_path / "roofline.xyz")
    with pytest.raises(InvalidOption, match="cannot write"):
        save_figure(figure, tmp_path)

    def full_disk(path: Path, **_: object) -> None:
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full_disk)
    with pytest.raises(InvalidOption, match="No space left"):
        save_figure(figure, tmp_path / "roofline.png")
    assert list(tmp_path.iterdir()) == []


def test_labels_of_near_points_stand_in_the_order_of_their_rates() -> None:
    points = [("slow", 85.0, 90e9), ("fast", 85.0, 99e9), ("middling", 85.0, 95e9)]
    axes = draw_roofline(synthetic_profile(), points).axes[0]
    heights = {
        text.get_text().split()[0]: axes.transData.transform(text.xy)[1] + text.xyann[1] * 150 / 72
        for text in axes.texts
    }
    assert heights["fast"] > heights["middling"] > heights["slow"]


def test_a_name_is_no_formula() -> None:
    draw_roofline(synthetic_profile(name="$\\frac$"), POINTS).canvas.draw()


def test_levels_ceilings_and_points_are_labelled() -> None:
    text = _texts(draw_roofline(synthetic_profile(), POINTS, threads=2))
    for part in ("L1  800 GB/s", "L2  400 GB/s", "DRAM  30 GB/s", "f32 fma\n200 GFLOP/s", "f64 fma", "best"):
        assert part in text


def test_every_point_lies_within_the_axes() -> None:
    points = [("slow and sparse", 1e-4, 1e3), ("fast and dense", 1e5, 1e14)]
    axes = draw_roofline(synthetic_profile(), points).axes[0]
    for _, intensity, rate in points:
        assert axes.get_xlim()[0] < intensity < axes.get_xlim()[1]
        assert axes.get_ylim()[0] < rate < axes.get_ylim()[1]


def test_tasks_without_arithmetic_are_listed_instead() -> None:
    figure = draw_roofline(synthetic_profile(), [("transpose", 0.0, 0.0), *POINTS])
    assert "no place on these axes: transpose" in _texts(figure)


@pytest.mark.parametrize("name", published_profiles())
def test_published_profiles_can_be_drawn(name: str) -> None:
    draw_roofline(load_profile(name), [])


def test_points_that_cannot_be_are_refused() -> None:
    for bad in (math.nan, -1.0):
        with pytest.raises(InvalidOption, match="roofline point 'odd'"):
            draw_roofline(synthetic_profile(), [("odd", bad, 1.0)])


def test_pyplot_is_never_imported() -> None:
    code = (
        "import sys; from solgym.hardware.profile import load_profile;"
        "from solgym.hardware.roofline import draw_roofline;"
        "assert 'matplotlib' not in sys.modules;"
        "draw_roofline(load_profile('h100-sxm'), []); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
