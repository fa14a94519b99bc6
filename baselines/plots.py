"""Pictures of a run, drawn without a display: the best time so far against what bounds it.

The roofline of a machine is drawn by ``solgym.hardware.roofline``; here is what belongs to a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from solgym.errors import InvalidOption
from solgym.hardware.roofline import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from solgym.baselines.trace import TraceRecord

__all__ = ["GRID", "INK", "MUTED", "ReferenceTime", "draw_progress", "format_seconds", "plain_axes"]

INK = "#22262b"
"""Colour of titles; every picture of this package shares it."""
MUTED = "#6b7480"
"""Colour of axes and labels."""
GRID = "#e6e9ed"
"""Colour of the lines behind a plot."""
_BEST = "#1f6feb"
_TRIAL = "#9dc1f5"
_FAILED = "#d1495b"
_REFERENCE_COLOURS = {"baseline": "#8a6d3b", "expert": "#7b4fb5", "speed of light": "#c98700"}
_PEER_COLOUR = "#2f8f6b"
_LEFT = 0.08
# Labels at the right edge closer than this fraction of the axis would overlap.
_LABEL_SPACING = 0.062


@dataclass(frozen=True)
class ReferenceTime:
    """A time to compare a search with, drawn as a horizontal line: a label and seconds."""

    label: str
    time_s: float


def format_seconds(seconds: float) -> str:
    """Write a duration with a unit that suits it and three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def draw_progress(
    title: str,
    trials: Sequence[TraceRecord],
    references: Sequence[ReferenceTime],
    path: str | Path | None = None,
) -> Figure:
    """Draw every trial and the best time so far, with horizontal lines for what to compare with.

    Args:
        title: shown above the plot.
        trials: the trials of a run in order; failed ones appear as marks on the lower edge.
        references: baseline, expert, peers, the speed of light.
        path: where to write a PNG; None writes nothing.

    Raises:
        InvalidOption: there is nothing to draw, or the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = [(i, t) for i, record in enumerate(trials, 1) if (t := _time(record)) is not None]
    if not timed and not references:
        raise InvalidOption("there is nothing to draw: no trial was timed and no reference was given")
    failed = [i for i, record in enumerate(trials, 1) if _time(record) is None]
    times = [t for _, t in timed] + [r.time_s for r in references]

    figure = Figure(figsize=(10.4, 5.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((_LEFT, 0.115, 0.61, 0.75))
    axes.set_yscale("log")
    low, high = min(times), max(times)
    span = max(high / low, 1.5)
    axes.set_ylim(low / span**0.10, high * span**0.07)
    axes.set_xlim(0, max(len(trials), 1) * 1.015 + 0.5)
    _style(axes)

    for reference in references:
        colour = _REFERENCE_COLOURS.get(reference.label, _PEER_COLOUR)
        axes.axhline(reference.time_s, color=colour, linewidth=1.1, linestyle=(0, (5, 3)), zorder=1.5)
    axes.scatter(*_columns(timed), s=13, color=_TRIAL, linewidths=0, zorder=2, label="trial")
    if failed:
        axes.plot(
            failed, [0.012] * len(failed), "|", transform=axes.get_xaxis_transform(), color=_FAILED,
            markersize=7, markeredgewidth=1.1, zorder=3, label="failed trial",
        )  # fmt: skip
    best = _best_so_far(timed, len(trials))
    if best:
        axes.step(*_columns(best), where="post", color=_BEST, linewidth=2.2, zorder=4, label="best so far")
        axes.plot(*best[-1], "o", color=_BEST, markersize=5, zorder=5)
    labels = [
        (r.time_s, f"{r.label}  {format_seconds(r.time_s)}", _REFERENCE_COLOURS.get(r.label, _PEER_COLOUR))
        for r in references
    ]
    if best:
        labels.append((best[-1][1], f"best so far  {format_seconds(best[-1][1])}", _BEST))
    _label_right_edge(axes, labels)

    axes.set_xlabel("measurements", color=MUTED)
    axes.set_ylabel("time (log scale)", color=MUTED)
    figure.text(_LEFT, 0.945, title, fontsize=13, fontweight="bold", color=INK, va="center")
    figure.text(_LEFT, 0.898, _subtitle(len(timed), len(failed)), fontsize=9.5, color=MUTED, va="center")
    if trials:
        axes.legend(
            loc="center right", bbox_to_anchor=(0.985, 0.945), bbox_transform=figure.transFigure, ncols=3,
            frameon=False, fontsize=9, labelcolor=MUTED, handletextpad=0.5, columnspacing=1.4,
            borderaxespad=0.2,
        )  # fmt: skip
    if path is not None:
        save_figure(figure, path)
    return figure


def _time(record: TraceRecord) -> float | None:
    result = record.result
    return result.time_s if result.ok else None


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _best_so_far(timed: Sequence[tuple[int, float]], trials: int) -> list[tuple[float, float]]:
    """The points of the descending staircase, ending at the last trial."""
    stairs: list[tuple[float, float]] = []
    for index, time_s in timed:
        if not stairs or time_s < stairs[-1][1]:
            stairs.append((index, time_s))
    if stairs and stairs[-1][0] < trials:
        stairs.append((trials, stairs[-1][1]))
    return stairs


def _subtitle(timed: int, failed: int) -> str:
    text = f"{timed} candidates compiled, checked and timed"
    return f"{text}; {failed} failed" if failed else text


def plain_axes(axes: Axes, labelsize: float = 9.0) -> None:
    """Give axes the look that all pictures share: a base line, horizontal grid lines, muted labels."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="y", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelsize=labelsize, length=0)


def _style(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator

    plain_axes(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    bottom, top = axes.get_ylim()
    # Over a small span powers of ten would leave the axis with one label or none.
    locator: Locator
    if top / bottom < 8:
        locator = MaxNLocator(nbins=6, steps=[1, 2, 5, 10])
    else:
        locator = LogLocator(subs=(1.0,) if top / bottom > 100 else (1.0, 2.0, 5.0))
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.minorticks_off()


def _tick(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= size * 0.999:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0e} s"


def _label_right_edge(axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Name each line beyond the right edge, moving names apart that would overlap."""
    to_axes = axes.transAxes.inverted()

    def height(time_s: float) -> float:
        y: float = to_axes.transform(axes.transData.transform((1.0, time_s)))[1]
        return y

    ordered = sorted((height(time_s), text, colour) for time_s, text, colour in labels)
    places = _spread([y for y, _, _ in ordered], _LABEL_SPACING)
    for (y, text, colour), place in zip(ordered, places, strict=True):
        axes.annotate(
            text, xy=(1.0, y), xytext=(1.04, place), xycoords="axes fraction", textcoords="axes fraction",
            color=colour, fontsize=9, va="center", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.9, "shrinkA": 2, "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )  # fmt: skip


def _spread(heights: Sequence[float], spacing: float) -> list[float]:
    """Move ascending heights as little as possible so that they lie ``spacing`` apart and within [0, 1].

    Least squares with an order constraint: pool neighbours that are too close around their mean.
    """
    groups: list[tuple[float, int]] = []
    for position, y in enumerate(heights):
        mean, count = y - position * spacing, 1
        while groups and groups[-1][0] > mean:
            other, others = groups.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        groups.append((mean, count))
    places = [mean for mean, count in groups for _ in range(count)]
    places = [y + position * spacing for position, y in enumerate(places)]
    last = len(places) - 1
    # Keep room at each end for those that follow; the lower end counts if there is too little for all.
    places = [min(y, 1.0 - (last - position) * spacing) for position, y in enumerate(places)]
    return [max(y, position * spacing) for position, y in enumerate(places)]
