"""Roofline pictures: attainable FLOP/s over arithmetic intensity, with measured points.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009: one slope per memory level, one ceiling per execution unit and dtype, and
a ridge point where they meet. Drawn with matplotlib's object interface, so no global state and no display.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from solgym.errors import InvalidOption
from solgym.hardware.profile import HardwareProfile, MemoryLevel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["RooflinePoint", "draw_roofline", "save_figure"]

RooflinePoint = tuple[str, float, float]
"""Label, arithmetic intensity in flop/byte, FLOP/s."""

_INK, _MUTED, _GRID, _PAPER = "#1b2430", "#5d6b7a", "#e3e8ee", "#ffffff"
_LEVEL_COLOURS = {"L1": "#0b7a75", "L2": "#2c6fbb", "L3": "#7a4fbf", "DRAM": "#c2410c"}
_CEILING_COLOURS = ("#1b2430", "#475569", "#64748b", "#7f8ea3")
_POINT_COLOURS = ("#e11d48", "#f59e0b", "#16a34a", "#0ea5e9", "#a855f7", "#be185d", "#65a30d", "#475569")
_MARKERS = "oDs^vPX*"


@dataclass(frozen=True)
class _Slope:
    name: str
    bytes_per_s: float


@dataclass(frozen=True)
class _Ceiling:
    name: str
    flops_per_s: float


def _slopes(profile: HardwareProfile, threads: int) -> list[_Slope]:
    """The memory levels with their fastest stream: a roof has to lie above every mix of reads and writes."""
    slopes = []
    for level in profile.levels:
        best = _fastest_stream(level, threads, profile.cores)
        if best is not None:
            slopes.append(_Slope(level.name, best))
    return slopes


def _fastest_stream(level: MemoryLevel, threads: int, cores: int) -> float | None:
    streams = level.streams(threads, cores)
    if streams is None:
        return None
    return max(streams.read, streams.copy, streams.add or 0.0, streams.write or 0.0)


def _ceilings(profile: HardwareProfile, threads: int) -> list[_Ceiling]:
    """Every unit and dtype, the highest first; equal ones share a line."""
    units: dict[float, dict[str, list[str]]] = {}
    for unit, dtypes in profile.peak_flops_per_s.items():
        for dtype in dtypes:
            value = profile.peak_flops(dtype, unit, threads)
            units.setdefault(value, {}).setdefault(unit, []).append(dtype)
    return [
        _Ceiling(", ".join(f"{', '.join(dtypes)} {unit}" for unit, dtypes in units[value].items()), value)
        for value in sorted(units, reverse=True)
    ]


def _si(value: float, unit: str) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _check(points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
    """The points that have a place on logarithmic axes.

    Raises:
        InvalidOption: a rate or intensity is negative or not a number.
    """
    for label, intensity, flops_per_s in points:
        if math.isnan(intensity) or math.isnan(flops_per_s) or intensity < 0 or flops_per_s < 0:
            raise InvalidOption(
                f"roofline point {label!r} has intensity {intensity} and {flops_per_s} FLOP/s; "
                "expected numbers that are not negative"
            )
    return [point for point in points if all(0 < value < math.inf for value in point[1:])]


def draw_roofline(
    profile: HardwareProfile,
    points: Sequence[RooflinePoint],
    threads: int = 1,
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw a roofline, and save it if ``path`` is given, see ``save_figure``.

    Args:
        profile: peaks and bandwidths; each level is drawn with its fastest stream.
        points: (label, arithmetic intensity in flop/byte, FLOP/s) of what was measured. Tasks without
            arithmetic, such as a transposition, have no place on logarithmic axes and are listed below.
        threads: threads whose peaks are drawn.
        path: where to save the picture, for example ``roofline.png``.

    Raises:
        InvalidOption: a point is negative or not a number, or the picture cannot be saved.
    """
    # Imported here: matplotlib takes longer to import than all the rest.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = _check(points)
    slopes, ceilings = _slopes(profile, threads), _ceilings(profile, threads)
    figure = Figure(figsize=(10, 6.4), dpi=150, facecolor=_PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.085, 0.115, 0.765, 0.755))
    _set_limits(axes, slopes, ceilings, drawn)
    _draw_slopes(axes, slopes, ceilings)
    _draw_ceilings(axes, slopes, ceilings)
    _draw_points(axes, drawn, slopes, ceilings)
    _decorate(figure, axes, profile, threads, [p[0] for p in points if p not in drawn])
    if path is not None:
        save_figure(figure, path)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a picture whole or not at all; the suffix chooses the format, PNG without one.

    Raises:
        InvalidOption: the file cannot be written, or there is no format of that name.
    """
    file = Path(path)
    form = file.suffix.removeprefix(".").lower() or "png"
    if form not in figure.canvas.get_supported_filetypes():
        raise InvalidOption(f"cannot draw {file}: there is no picture format {form!r}; give a .png file")
    temporary = file.with_name(f".{file.name}.part")
    try:
        figure.savefig(temporary, format=form)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InvalidOption(f"cannot write {file}: {error.strerror}; give another file") from error


def _set_limits(
    axes: Axes, slopes: list[_Slope], ceilings: list[_Ceiling], points: list[RooflinePoint]
) -> None:
    ridges = [ceilings[0].flops_per_s / slope.bytes_per_s for slope in slopes]
    left = min([min(ridges) / 24, *(intensity / 2.5 for _, intensity, _ in points)])
    right = max([max(ridges) * 24, *(intensity * 4 for _, intensity, _ in points)])
    lowest = min(slope.bytes_per_s for slope in slopes) * left
    bottom = min([lowest * 1.6, *(rate / 3 for _, _, rate in points)])
    top = max([ceilings[0].flops_per_s, *(rate for _, _, rate in points)]) * 2.2
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))


def _draw_slopes(axes: Axes, slopes: list[_Slope], ceilings: list[_Ceiling]) -> None:
    roof = ceilings[0].flops_per_s
    left, right = axes.get_xlim()
    bottom, _ = axes.get_ylim()
    for slope in slopes:
        colour = _LEVEL_COLOURS.get(slope.name, _MUTED)
        ridge = roof / slope.bytes_per_s
        axes.fill_between(
            [left, ridge, right],
            [left * slope.bytes_per_s, roof, roof],
            bottom,
            color=colour,
            alpha=0.03,
            lw=0,
        )
        axes.plot([left, ridge], [left * slope.bytes_per_s, roof], color=colour, lw=2.0, zorder=3)
        axes.plot([ridge, ridge], [bottom, roof], color=colour, lw=0.8, ls=(0, (2, 4)), alpha=0.55, zorder=2)
        axes.plot(ridge, roof, "o", ms=6.5, mfc=_PAPER, mec=colour, mew=1.8, zorder=5)
        # The label starts where the slope enters the picture.
        start = max(left, bottom / slope.bytes_per_s) * 1.18
        corner = axes.transData.transform([(start, start * slope.bytes_per_s), (ridge, roof)])
        angle = math.degrees(math.atan2(corner[1][1] - corner[0][1], corner[1][0] - corner[0][0]))
        axes.annotate(
            f"{slope.name}  {_si(slope.bytes_per_s, 'B/s')}",
            (start, start * slope.bytes_per_s),
            xytext=(-6 * math.sin(math.radians(angle)), 6 * math.cos(math.radians(angle))),
            textcoords="offset points",
            rotation=angle,
            rotation_mode="anchor",
            color=colour,
            fontsize=9,
            fontweight="bold",
            zorder=6,
        )
    for index, slope in enumerate(sorted(slopes, key=lambda s: s.bytes_per_s)):
        ridge = roof / slope.bytes_per_s
        axes.annotate(
            f"{ridge:.3g}",
            (ridge, bottom),
            xytext=(3, 4 + 11 * (index % 2)),
            textcoords="offset points",
            color=_LEVEL_COLOURS.get(slope.name, _MUTED),
            fontsize=8,
            zorder=6,
        )


def _draw_ceilings(axes: Axes, slopes: list[_Slope], ceilings: list[_Ceiling]) -> None:
    fastest = max(slope.bytes_per_s for slope in slopes)
    right = axes.get_xlim()[1]
    previous = math.inf
    for index, ceiling in enumerate(ceilings):
        colour = _CEILING_COLOURS[min(index, len(_CEILING_COLOURS) - 1)]
        axes.plot(
            [ceiling.flops_per_s / fastest, right],
            [ceiling.flops_per_s] * 2,
            color=colour,
            lw=2.2 if index == 0 else 1.4,
            ls="-" if index == 0 else (0, (6, 3)),
            zorder=4,
        )
        # Names stand in the right margin, clear of the points; close ones make room for each other.
        crowded = previous / ceiling.flops_per_s < 1.35
        axes.annotate(
            f"{ceiling.name}\n{_si(ceiling.flops_per_s, 'FLOP/s')}",
            (right, ceiling.flops_per_s),
            xytext=(6, -9 if crowded else 0),
            textcoords="offset points",
            va="top" if crowded else "center",
            color=colour,
            fontsize=8.5,
            fontweight="bold",
            annotation_clip=False,
        )
        previous = ceiling.flops_per_s


def _draw_points(
    axes: Axes, points: list[RooflinePoint], slopes: list[_Slope], ceilings: list[_Ceiling]
) -> None:
    from matplotlib.patheffects import withStroke

    taken: list[tuple[float, float]] = []
    # Labels make room downwards, so the fastest takes its place first.
    order = sorted(range(len(points)), key=lambda index: -points[index][2])
    lines = [axes.transData.transform((1.0, ceiling.flops_per_s))[1] for ceiling in ceilings]
    for place, index in enumerate(order):
        label, intensity, flops_per_s = points[index]
        colour = _POINT_COLOURS[index % len(_POINT_COLOURS)]
        roof = min(ceilings[0].flops_per_s, intensity * max(s.bytes_per_s for s in slopes))
        if flops_per_s < roof:
            axes.plot([intensity] * 2, [flops_per_s, roof], color=colour, lw=0.9, alpha=0.35, zorder=6)
        axes.plot(
            intensity,
            flops_per_s,
            _MARKERS[index % len(_MARKERS)],
            ms=9,
            mfc=colour,
            mec=_PAPER,
            mew=1.4,
            zorder=8 - place / 100,
        )
        x, y = axes.transData.transform((intensity, flops_per_s))
        shift = 0.0
        # A label steps down by a line until it is clear of near labels and of the ceilings.
        while any(abs(x - u) < 330 and abs(y + shift - v) < 21 for u, v in taken) or any(
            abs(y + shift - line) < 15 for line in lines
        ):
            shift -= 7
        taken.append((x, y + shift))
        to_left = intensity > math.sqrt(axes.get_xlim()[1] * ceilings[0].flops_per_s / slopes[-1].bytes_per_s)
        text = axes.annotate(
            f"{label}  {_si(flops_per_s, 'FLOP/s')}",
            (intensity, flops_per_s),
            xytext=(-9 if to_left else 9, shift * 72 / 150 - 3),
            textcoords="offset points",
            ha="right" if to_left else "left",
            color=_INK,
            fontsize=9,
            zorder=9,
        )
        text.set_path_effects([withStroke(linewidth=3, foreground=_PAPER)])


def _decorate(
    figure: Figure, axes: Axes, profile: HardwareProfile, threads: int, left_out: list[str]
) -> None:
    axes.grid(True, which="major", color=_GRID, lw=0.8, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_MUTED)
    axes.tick_params(which="both", colors=_MUTED, labelsize=9)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: _si(value, ""))
    axes.set_xlabel("arithmetic intensity (flop per compulsory byte)", color=_INK, fontsize=10)
    axes.set_ylabel("FLOP/s", color=_INK, fontsize=10)
    used = f"{threads} thread{'s' * (threads > 1)}" if profile.target == "cpu" else "whole device"
    figure.text(
        0.085,
        0.945,
        f"Roofline: {profile.name}",
        color=_INK,
        fontsize=14,
        fontweight="bold",
        parse_math=False,
    )
    figure.text(
        0.085,
        0.905,
        f"{used}, {profile.kind} profile; slopes are each level's fastest stream, rings are ridge points",
        color=_MUTED,
        fontsize=9.5,
    )
    if left_out:
        figure.text(
            0.97, 0.02, f"no place on these axes: {', '.join(left_out)}", color=_MUTED, fontsize=8, ha="right"
        )
