"""Pictures of a comparison: curves against what was spent, final scores, probabilities of improvement.

The colours are those of Okabe and Ito (2008), which people with any colour vision can tell apart; methods
differ in their markers too, so that a copy without colour stays readable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from solgym.baselines.comparison import Comparison, Curve
from solgym.baselines.plots import GRID, INK, MUTED, plain_axes
from solgym.baselines.recorded_runs import AXES, Axis
from solgym.baselines.statistics import Interval
from solgym.errors import InvalidOption
from solgym.hardware.roofline import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "RANDOM_COLOUR", "Look", "draw_curves", "draw_final", "draw_improvement", "looks_of"]

Dashes: TypeAlias = Literal["-"] | tuple[float, tuple[float, ...]]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
RANDOM_COLOUR = "#7d838c"
"""Random search, which everything is held against, is grey."""

_MARKERS = "osD^vPX<>*"
_DASHES: tuple[Dashes, ...] = ("-", (0, (5.0, 2.0)), (0, (1.5, 1.5)))
_COLUMNS = 3
_PANEL = (4.0, 2.75)
"""Inches, of one task's panel."""
_HEAD = 0.95
"""Inches above the panels, for the title and one line of legend."""
_LEGEND_LINE = 0.2


@dataclass(frozen=True)
class Look:
    """How a method is drawn wherever it appears."""

    colour: str
    marker: str
    dashes: Dashes


def looks_of(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each method; the order of the methods decides, so give all of them."""
    looks, number = {}, 0
    for position, method in enumerate(methods):
        marker = _MARKERS[position % len(_MARKERS)]
        if method == "random":
            looks[method] = Look(RANDOM_COLOUR, marker, "-")
            continue
        dashes = _DASHES[number // len(COLOURS) % len(_DASHES)]
        looks[method] = Look(COLOURS[number % len(COLOURS)], marker, dashes)
        number += 1
    return looks


def draw_curves(comparison: Comparison, axis: Axis, path: str | Path | None = None) -> Figure:
    """Draw the score against what was spent: a panel over all common tasks, and one for each task.

    Args:
        comparison: the figures.
        axis: what is spent.
        path: where to write a PNG; None writes nothing.

    Raises:
        InvalidOption: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: list[tuple[str, Mapping[str, Curve], float | None]] = [
        (task.label, {m: on_task.curves[axis] for m, on_task in task.methods.items()}, task.expert)
        for task in comparison.tasks
    ]
    if len(comparison.common_tasks) > 1:
        overall = {method: over.curves[axis] for method, over in comparison.overall.items()}
        panels.insert(0, (f"all {len(comparison.common_tasks)} tasks", overall, None))
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(columns, 2) * _PANEL[0]
    looks = looks_of(comparison.methods)
    head = _HEAD + _LEGEND_LINE * (_legend_lines(looks, width) - 1)
    height = rows * _PANEL[1] + head
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        rows, columns, left=0.75 / width, right=1 - 0.2 / width, top=1 - (head + 0.2) / height,
        bottom=0.5 / height, wspace=0.24, hspace=0.42,
    )  # fmt: skip
    for position, (title, curves, expert) in enumerate(panels):
        axes = figure.add_subplot(grid[position // columns, position % columns])
        _draw_panel(axes, curves, expert, looks)
        axes.set_title(title, loc="left", fontsize=9.5, color=INK, fontweight="bold", pad=6)
        if position % columns == 0:
            axes.set_ylabel("gap closed", color=MUTED, fontsize=9)
        if position + columns >= len(panels):
            axes.set_xlabel(axis, color=MUTED, fontsize=9)
    subtitle = "best so far; on one task the median over seeds and the quartiles"
    if len(comparison.common_tasks) > 1:
        subtitle += ", over all tasks the interquartile mean and its 95% interval"
    _head(figure, f"Gap closed against {axis}", subtitle, looks, any(e is not None for *_, e in panels))
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_panel(
    axes: Axes, curves: Mapping[str, Curve], expert: float | None, looks: Mapping[str, Look]
) -> None:
    for method, whole in curves.items():
        look, curve = looks[method], _corners(whole)
        axes.fill_between(
            curve.spent, curve.low, curve.high, step="post", color=look.colour, alpha=0.16, linewidth=0
        )
        axes.step(
            curve.spent, curve.middle, where="post", color=look.colour, linewidth=1.7, linestyle=look.dashes,
            zorder=3, solid_joinstyle="round",
        )  # fmt: skip
        axes.plot(
            curve.spent[-1], curve.middle[-1], look.marker, color=look.colour, markersize=5, clip_on=False,
            zorder=4,
        )  # fmt: skip
    if expert is not None:
        axes.axhline(expert, color=MUTED, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1.5)
    longest = max(curve.spent[-1] for curve in curves.values())
    axes.set_xlim(0, longest * 1.02 if longest else 1)
    axes.set_ylim(*_limits(curves, expert))
    _style(axes)


def _corners(curve: Curve) -> Curve:
    """Only the points at which a staircase changes, and the last: the same picture from far fewer."""
    levels = list(zip(curve.middle, curve.low, curve.high, strict=True))
    last = len(levels) - 1
    kept = [i for i, level in enumerate(levels) if i in (0, last) or level != levels[i - 1]]
    series = (curve.spent, curve.middle, curve.low, curve.high)
    return Curve(*(tuple(values[i] for i in kept) for values in series))


def _limits(curves: Mapping[str, Curve], expert: float | None) -> tuple[float, float]:
    """Room for everything after a tenth of the budget: what comes before is a climb from 0 in every run."""
    tops = [max(curve.high) for curve in curves.values()] + ([] if expert is None else [expert])
    starts = [
        next(low for x, low in zip(curve.spent, curve.low, strict=True) if x >= curve.spent[-1] / 10)
        for curve in curves.values()
    ]
    top, bottom = max(tops), min(starts)
    room = max(top - bottom, 0.02)
    return max(0.0, bottom - 0.2 * room), top + 0.12 * room


def _style(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    plain_axes(axes, labelsize=8.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))


def _head(figure: Figure, title: str, subtitle: str, looks: Mapping[str, Look], expert: bool = False) -> None:
    """Title, explanation and legend, at fixed distances from the upper edge."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    left = 0.2 / width
    figure.text(left, 1 - 0.24 / height, title, fontsize=13, fontweight="bold", color=INK, va="center")
    figure.text(left, 1 - 0.50 / height, subtitle, fontsize=9.5, color=MUTED, va="center")
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=5, linewidth=1.7,
               linestyle=look.dashes, label=method)
        for method, look in looks.items()
    ]  # fmt: skip
    if expert:
        handles.append(Line2D([], [], color=MUTED, linewidth=1.0, linestyle=(0, (5, 3)), label="expert"))
    lines = _legend_lines(looks, width)
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(left, 1 - 0.69 / height),
        ncols=math.ceil(len(handles) / lines) if handles else 1,
        frameon=False, fontsize=9, labelcolor=MUTED, handletextpad=0.5, columnspacing=1.4, borderaxespad=0,
        borderpad=0,
    )  # fmt: skip


def _legend_lines(looks: Mapping[str, Look], width: float) -> int:
    """How many lines the legend needs in a picture that many inches wide."""
    entries = [*looks, "expert"]
    return math.ceil(len(entries) * (0.6 + 0.08 * max(map(len, entries))) / (width - 0.4))


def draw_final(comparison: Comparison, path: str | Path | None = None) -> Figure:
    """Draw each method's interquartile mean with its 95% interval, at equal measurements and equal seconds.

    Args:
        comparison: the figures.
        path: where to write a PNG; None writes nothing.

    Raises:
        InvalidOption: the methods share no task, or the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    _need_common_tasks(comparison)
    looks = looks_of(comparison.methods)
    ranked = sorted(comparison.methods, key=lambda m: comparison.overall[m].final["measurements"].value)
    width, height = 9.4, 1.35 + 0.36 * len(ranked)
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    longest = max(map(len, ranked))
    left = (0.35 + 0.085 * longest) / width
    grid = figure.add_gridspec(
        1,
        len(AXES),
        left=left,
        right=1 - 0.25 / width,
        top=1 - 0.95 / height,
        bottom=0.4 / height,
        wspace=0.1,
    )
    for column, axis in enumerate(AXES):
        axes = figure.add_subplot(grid[0, column])
        for position, method in enumerate(ranked):
            look, found = looks[method], comparison.overall[method].final[axis]
            if found.low is not None and found.high is not None:
                axes.plot(
                    [found.low, found.high], [position] * 2, color=look.colour, linewidth=6, alpha=0.35,
                    solid_capstyle="round",
                )  # fmt: skip
            axes.plot(found.value, position, look.marker, color=look.colour, markersize=6.5)
        _style(axes)
        axes.grid(axis="x", color=GRID, linewidth=0.9)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.set_ylim(-0.6, len(ranked) - 0.4)
        axes.margins(x=0.08)
        axes.set_yticks(range(len(ranked)), ranked if column == 0 else [""] * len(ranked))
        axes.tick_params(axis="y", colors=INK, labelsize=9.5)
        axes.set_title(f"at equal {axis}", loc="left", fontsize=9.5, color=INK, fontweight="bold", pad=6)
    tasks = f"{len(comparison.common_tasks)} task{'s' if len(comparison.common_tasks) > 1 else ''}"
    subtitle = f"interquartile mean over all runs of {tasks}, with 95% stratified bootstrap intervals"
    _head(figure, "Gap closed at the end of the budget", subtitle, {})
    if path is not None:
        save_figure(figure, path)
    return figure


def draw_improvement(comparison: Comparison, path: str | Path | None = None) -> Figure:
    """Draw the probabilities that the method of a row beats that of a column.

    Args:
        comparison: the figures.
        path: where to write a PNG; None writes nothing.

    Raises:
        InvalidOption: the methods share no task, or the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    _need_common_tasks(comparison)
    methods = comparison.methods
    cell, label = 0.62, 0.3 + 0.085 * max(map(len, methods))
    side = cell * len(methods)
    width, height = max(label + 2 * side + 0.75, 7.0), side + label + 1.15
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    for column, axis in enumerate(AXES):
        x = label + column * (side + 0.4)
        axes = figure.add_axes((x / width, (height - 1.05 - side) / height, side / width, side / height))
        _draw_table(axes, methods, comparison.improvement[axis], first=column == 0)
        axes.set_title(f"at equal {axis}", loc="left", fontsize=9.5, color=INK, fontweight="bold", pad=6)
    _head(
        figure, "Probability of improvement", "of the method of the row over that of the column; "
        "bold where the 95% interval leaves out 0.5", {},
    )  # fmt: skip
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_table(
    axes: Axes, methods: Sequence[str], table: Mapping[str, Mapping[str, Interval]], first: bool
) -> None:
    nothing = Interval(math.nan)  # a method against itself
    numbers = [[table[row].get(column, nothing).value for column in methods] for row in methods]
    # From orange over white to purple, which any colour vision tells apart; pale, so that numbers stand out.
    axes.imshow(numbers, cmap="PuOr", vmin=-0.35, vmax=1.35, aspect="auto")
    for i, row in enumerate(methods):
        for j, column in enumerate(methods):
            found = table[row].get(column)
            if found is not None:
                axes.text(
                    j, i, f"{found.value:.2f}", ha="center", va="center", fontsize=9,
                    color=INK,
                    fontweight="bold" if found.excludes(0.5) else "normal",
                )  # fmt: skip
    axes.set_xticks(range(len(methods)), methods, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(methods)), methods if first else [""] * len(methods))
    axes.tick_params(colors=INK, labelsize=9, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _need_common_tasks(comparison: Comparison) -> None:
    if not comparison.common_tasks:
        raise InvalidOption("the methods share no task with headroom, so there is nothing to draw over tasks")
