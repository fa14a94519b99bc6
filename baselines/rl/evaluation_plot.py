"""The picture of an evaluation: per task, how many times faster than the expert and than a fixed pipeline."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from solgym.baselines.plots import GRID, INK, MUTED
from solgym.baselines.rl.evaluation import Evaluation, Reference
from solgym.errors import InvalidOption
from solgym.hardware.roofline import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LABELS", "draw_evaluation"]

LABELS: Final[dict[Reference, str]] = {
    "expert": "the expert",
    "fixed": "the best fixed pipeline",
    "untouched": "the untouched program",
}
_COLOURS: Final[dict[Reference, str]] = {"expert": "#7b4fb5", "fixed": "#1f6feb", "untouched": "#8a6d3b"}
_ROW_INCHES: Final = 0.3
_SMALLEST_SPAN: Final = 1.3


def draw_evaluation(evaluation: Evaluation, path: str | Path | None = None) -> Figure:
    """Draw a bar per task and reference on a logarithmic scale, from 1, where both are equally fast.

    Drawn are the expert and the best fixed pipeline, or where there is neither the untouched candidate.

    Args:
        evaluation: what to draw.
        path: where to write a PNG; None writes nothing.

    Raises:
        InvalidOption: there is no task, or the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not evaluation.rows:
        raise InvalidOption("there is nothing to draw: no task was evaluated")
    compared: tuple[Reference, ...] = ("expert", "fixed")
    drawn = [reference for reference in compared if evaluation.summary(reference) is not None]
    references: list[Reference] = drawn or ["untouched"]
    rows = evaluation.rows[::-1]  # the first task on top
    width, height = 10.4, 1.75 + _ROW_INCHES * len(rows)
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    left = (0.35 + 0.075 * max(len(row.task) for row in rows)) / width
    axes = figure.add_axes((left, 0.55 / height, 1 - left - 0.35 / width, 1 - 1.6 / height))
    thickness = 0.76 / len(references)
    for place, reference in enumerate(references):
        heights, lengths = [], []
        for position, row in enumerate(rows):
            ratio = row.ratio(reference)
            if ratio is not None:
                heights.append(position + thickness * ((len(references) - 1) / 2 - place))
                lengths.append(ratio)
        axes.barh(
            heights, [length - 1 for length in lengths], left=1.0, height=thickness * 0.9,
            color=_COLOURS[reference], label=_label(evaluation, reference), zorder=2,
        )  # fmt: skip
    _style(axes, [ratio for row in rows for name in references if (ratio := row.ratio(name)) is not None])
    axes.set_yticks(range(len(rows)), [row.task for row in rows])
    for row, text in zip(rows, axes.get_yticklabels(), strict=True):
        text.set_color(INK if row.status.value == "ok" else "#d1495b")
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("times as fast as the reference (log scale)", color=MUTED, fontsize=9)
    header, top = evaluation.header, height
    title = f"{header.algo} on {header.env_id}, one episode per task without search"
    figure.text(
        0.35 / width, 1 - 0.3 / top, title, fontsize=13, fontweight="bold", color=INK, va="center",
        parse_math=False,  # a policy file may call its algorithm anything
    )  # fmt: skip
    figure.legend(
        loc="center left", bbox_to_anchor=(0.3 / width, 1 - 0.68 / top), ncols=len(references), frameon=False,
        fontsize=9, labelcolor=MUTED, handlelength=1.2, borderaxespad=0.0, borderpad=0.0,
    )  # fmt: skip
    if path is not None:
        save_figure(figure, path)
    return figure


def _label(evaluation: Evaluation, reference: Reference) -> str:
    summary = evaluation.summary(reference)
    assert summary is not None
    return f"against {LABELS[reference]}: geometric mean {summary.geomean_tasks:.3f}"


def _style(axes: Axes, ratios: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    low, high = min([*ratios, 1 / _SMALLEST_SPAN]), max([*ratios, _SMALLEST_SPAN])
    room = math.exp(0.04 * math.log(high / low))
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    is_narrow = high / low < 8
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]) if is_narrow else LogLocator(subs=(1.0, 2.0, 5.0))
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.minorticks_off()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="x", color=GRID, linewidth=0.9)
    axes.axvline(1.0, color=MUTED, linewidth=1.1, zorder=3)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelsize=8.5, length=0)
