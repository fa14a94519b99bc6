"""The picture of a training run: returns and scores against steps, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solgym.baselines.plots import INK, MUTED, plain_axes
from solgym.hardware.roofline import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_learning"]

_TRAINED = "#1f6feb"
_TEST = "#c98700"
_RETURN = "#7b4fb5"


def draw_learning(
    title: str, progress: Sequence[Mapping[str, Any]], path: str | Path | None = None
) -> Figure:
    """Draw how a run went.

    Args:
        title: shown above the plots.
        progress: lines of ``progress.jsonl``.
        path: where to write a PNG; None writes nothing.

    Raises:
        InvalidOption: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 4.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    returns, scores = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.98, bottom=0.13, top=0.80, wspace=0.18)
    _line(returns, progress, "mean_return", "training episodes", _RETURN, "-")
    returns.set_ylabel("mean return", color=MUTED)
    _line(scores, progress, "mean_gap_closed", "training episodes", _RETURN, "-")
    _line(scores, progress, "train_gap_closed", "trained tasks, best actions", _TRAINED, "o-")
    _line(scores, progress, "test_gap_closed", "test tasks, best actions", _TEST, "o-")
    scores.set_ylabel("mean gap closed", color=MUTED)
    for axes in (returns, scores):
        _style(axes)
    figure.text(0.07, 0.93, title, fontsize=13, fontweight="bold", color=INK, va="center")
    handles, labels = scores.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="center left", bbox_to_anchor=(0.062, 0.86), ncols=3, frameon=False,
            fontsize=9, labelcolor=MUTED,
        )  # fmt: skip
    if path is not None:
        save_figure(figure, path)
    return figure


def _line(
    axes: Axes, progress: Sequence[Mapping[str, Any]], name: str, label: str, colour: str, marks: str
) -> None:
    points = [(line["steps"], line[name]) for line in progress if line.get(name) is not None]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, marks, color=colour, linewidth=1.8, markersize=4, label=label)


def _style(axes: Axes) -> None:
    plain_axes(axes)
    axes.set_xlabel("steps", color=MUTED)
