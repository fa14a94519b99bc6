"""Pictures of an episode: as text, or as an image of the loop nest beside a roofline.

Matplotlib is imported only when an image is asked for, and only its object interface is used, so nothing
global changes and no display is needed.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solgym.envs.rewards import Timing
from solgym.hardware.measurement import Measurement
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import sol_fraction, speedup
from solgym.hardware.task import Task

__all__ = ["Attempt", "Scene", "draw", "write"]

IMAGE_SIZE_INCHES = (12.0, 6.0)
IMAGE_DPI = 80
MAX_IMAGE_LINES = 38
IMAGE_COLUMNS = 92
ROOFLINE_SHRINK = 1.25


@dataclass(frozen=True)
class Attempt:
    """One candidate that was tried: in which step, by which action, and what became of it."""

    step: int
    label: str
    measurement: Measurement


@dataclass(frozen=True)
class Scene:
    """What there is to show.

    Attributes:
        task: the task of the episode.
        description: the candidate in force, as text.
        attempts: the last candidates tried, oldest first.
        timing: the time in force, the baseline and the speed of light.
        profile: the machine's peaks.
        threads: threads that candidates run on.
    """

    task: Task
    description: str
    attempts: tuple[Attempt, ...]
    timing: Timing
    profile: HardwareProfile
    threads: int


def write(scene: Scene) -> str:
    """The candidate, the score and the last attempts as text."""
    return f"{_headline(scene)}\n\n{scene.description}\n\n{_attempts(scene)}\n"


def draw(scene: Scene) -> NDArray[np.uint8]:
    """The same as an image with a roofline, of shape (480, 960, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from solgym.hardware.roofline import draw_roofline

    roofline = _pixels(
        draw_roofline(scene.profile, _points(scene), scene.threads),
        FigureCanvasAgg,
        ROOFLINE_SHRINK,
    )
    text = Figure()
    lines = [part for line in write(scene).splitlines() for part in _wrapped(line)]
    if len(lines) > MAX_IMAGE_LINES:
        lines = [*lines[: MAX_IMAGE_LINES - 1], "..."]
    text.text(0.02, 0.98, "\n".join(lines), family="monospace", size=7, va="top")
    return np.concatenate([_pixels(text, FigureCanvasAgg), roofline], axis=1)


def _wrapped(line: str) -> list[str]:
    """A line of text in pieces that fit the left half of the image."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, IMAGE_COLUMNS, subsequent_indent=indent, drop_whitespace=False) or [""]


def _headline(scene: Scene) -> str:
    timing = scene.timing
    return (
        f"{scene.task.id}   {timing.time_s * 1e6:,.1f} us, "
        f"{speedup(timing.time_s, timing.baseline_s):.1f} x the baseline, "
        f"{sol_fraction(timing.time_s, timing.bound.time_s):.1%} of the speed of light "
        f"({timing.bound.time_s * 1e6:,.1f} us, bound by {timing.bound.binding}), "
        f"gap closed {timing.gap_closed:.3f}"
    )


def _attempts(scene: Scene) -> str:
    rows = [f"{'step':>4}  {'status':<16} {'time':>14}  what"]
    for attempt in scene.attempts:
        time_s = attempt.measurement.time_s
        shown = "" if time_s is None else f"{time_s * 1e6:,.1f} us"
        reason = f": {attempt.measurement.error}" if attempt.measurement.error else ""
        rows.append(
            f"{attempt.step:>4}  {attempt.measurement.status.value:<16} {shown:>14}  {attempt.label}{reason}"
        )
    return "\n".join(rows)


def _points(scene: Scene) -> list[tuple[str, float, float]]:
    """The baseline and the candidate in force as points of the roofline."""
    flops, timing = scene.task.work.flops, scene.timing
    intensity = timing.bound.arithmetic_intensity
    return [
        ("baseline", intensity, flops / timing.baseline_s),
        ("now", intensity, flops / timing.time_s),
    ]


def _pixels(figure, canvas_type, shrink: float = 1.0) -> NDArray[np.uint8]:  # type: ignore[no-untyped-def]
    """Half of the image; ``shrink`` makes what is drawn smaller and leaves the pixels as they are."""
    figure.set_size_inches(0.5 * IMAGE_SIZE_INCHES[0] * shrink, IMAGE_SIZE_INCHES[1] * shrink)
    figure.set_dpi(IMAGE_DPI / shrink)
    canvas = canvas_type(figure)
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[:, :, :3])
