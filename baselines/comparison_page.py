"""Shows a comparison as one web page, as pictures and as data.

The page is one file that asks nobody for anything: its style and drawings are inside, it needs no script, and
it follows the reader's choice of light or dark.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from solgym.baselines.comparison import Comparison, MethodOnTask, Quartiles, TargetFigures, TaskFigures
from solgym.baselines.comparison_plots import (
    COLOURS,
    RANDOM_COLOUR,
    draw_curves,
    draw_final,
    draw_improvement,
    looks_of,
)
from solgym.baselines.plots import GRID, INK, MUTED, format_seconds
from solgym.baselines.recorded_runs import AXES, Axis
from solgym.baselines.statistics import Interval
from solgym.errors import InvalidOption
from solgym.hardware.atomic_files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["comparison_json", "comparison_page", "interval_text", "spent_text", "write_comparison"]

PAGE_NAME = "comparison.html"
DATA_NAME = "comparison.json"

_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    RANDOM_COLOUR: "--random",
} | {colour: f"--series-{number}" for number, colour in enumerate(COLOURS)}
"""The colours that pictures are drawn in, and the variables of the page that take their place."""

_LIGHT = {variable: colour for colour, variable in _VARIABLES.items()} | {
    "--paper": "#ffffff",
    "--panel": "#f6f8fa",
    "--note": "#fff6dd",
}
_DARK = {
    "--ink": "#e8ebef",
    "--muted": "#9aa4af",
    "--grid": "#2c333b",
    "--random": "#a3a9b1",
    "--series-0": "#4f9fe0",
    "--series-1": "#f0803c",
    "--series-2": "#2fc79a",
    "--series-3": "#e3a3c6",
    "--series-4": "#f0b840",
    "--series-5": "#9bd8f7",
    "--paper": "#14181d",
    "--panel": "#1c2228",
    "--note": "#3a3115",
}
_WIN, _LOSS = (128, 115, 172), (224, 130, 20)
"""Colours of cells in which the method of the row wins, and loses, as far as they are opaque."""


def write_comparison(comparison: Comparison, folder: str | Path, command: str = "") -> dict[str, Path]:
    """Write the page, the data and the pictures, each whole or not at all.

    Args:
        comparison: the figures.
        folder: where to; made if missing.
        command: how to make the page again, shown on it.

    Returns:
        The files that were written, by what they are.

    Raises:
        InvalidOption: one cannot be written.
    """
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption(f"cannot write to {where}: {error.strerror}; give another --out") from error
    files = {"data": where / DATA_NAME}
    _write(files["data"], comparison_json(comparison))
    for axis in AXES:
        files[f"curves, {axis}"] = where / f"curves_{axis}.png"
        draw_curves(comparison, axis, files[f"curves, {axis}"])
    pictures = {"final": draw_final, "improvement": draw_improvement}
    for name, draw in pictures.items():
        picture = where / f"{name}.png"
        if comparison.common_tasks:
            files[name] = picture
            draw(comparison, picture)
        else:
            picture.unlink(missing_ok=True)  # of an earlier comparison
    files["page"] = where / PAGE_NAME
    _write(files["page"], comparison_page(comparison, command))
    return files


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InvalidOption(f"cannot write {path}: {error.strerror}; give another --out") from error


def comparison_json(comparison: Comparison) -> str:
    """Every figure of a comparison as JSON; the names are those of the dataclasses."""
    data = {"format": "solgym-comparison", "version": 1, **asdict(comparison)}
    text = json.dumps(data, indent=1, allow_nan=False)
    # One line for each list of numbers: curves would fill thousands.
    return re.sub(r"\[[-+.\de,\s]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def interval_text(interval: Interval) -> str:
    """A figure with its interval, such as ``0.885 [0.880, 0.886]``."""
    if interval.low is None or interval.high is None:
        return f"{interval.value:.3f}"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def spent_text(axis: Axis, spent: float | None) -> str:
    """What was spent, with a unit where it has one; None is never."""
    if spent is None:
        return "never"
    return f"{spent:g}" if axis == "measurements" else f"{spent:.3g} s"


def comparison_page(comparison: Comparison, command: str = "") -> str:
    """The whole page as HTML; see ``write_comparison``."""
    methods, tasks = len(comparison.methods), len(comparison.tasks)
    title = f"{_plural(methods, 'method')} on {_plural(tasks, 'task')}"
    sections = [
        _header(title, comparison),
        _over_tasks(comparison) if comparison.common_tasks else "",
        _section("Curves", *(_svg(draw_curves(comparison, axis), _curves_label(axis)) for axis in AXES)),
        _by_task(comparison),
        _definitions(comparison),
        _all_runs(comparison, command),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, sections))
        + "\n</main>\n</body>\n</html>\n"
    )


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def _header(title: str, comparison: Comparison) -> str:
    conditions = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(', '.join(values))}</dd>"
        for name, values in comparison.machine.items()
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    return (
        f"<header>\n<h1>{escape(title)}</h1>\n"
        f'<p class="lead">{_plural(len(comparison.runs), "run")}, compared by the gap closed: 0 at the '
        "untouched candidate, 1 at the speed of light.</p>\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        + f"<dl>{conditions}</dl>\n</header>"
    )


def _over_tasks(comparison: Comparison) -> str:
    parts = [_overall_table(comparison)]
    parts.append(_svg(draw_final(comparison), "Interquartile mean of the gap closed, by method"))
    if len(comparison.methods) > 1:
        parts.append(
            "<h3>Probability of improvement</h3>\n<p>That a run of the method of the row ends better than "
            "one of the method of the column, on a task drawn at random. Bold where the 95% interval leaves "
            "out 0.5.</p>"
        )
        parts.extend(_improvement_table(comparison, axis) for axis in AXES)
    return _section(f"Over {_plural(len(comparison.common_tasks), 'task')}", *parts)


def _overall_table(comparison: Comparison) -> str:
    ranked = sorted(comparison.methods, key=lambda m: -comparison.overall[m].final["measurements"].value)
    head = ["method", "runs", *(f"gap closed at equal {axis}" for axis in AXES)]
    head += [f"{axis} to target" for axis in AXES] + ["reached target"]
    rows = []
    for method in ranked:
        overall = comparison.overall[method]
        cells = [_number(interval_text(overall.final[axis])) for axis in AXES]
        cells += [_number(_median_to_target(axis, overall.target.get(axis))) for axis in AXES]
        cells.append(_number(_reached(overall.target.get("measurements"))))
        rows.append(_row(_name(comparison, method), [_number(str(overall.runs)), *cells]))
    caption = (
        "Interquartile means with 95% stratified bootstrap intervals; medians over all runs to the target, "
        f"{comparison.fraction:g} of the best known score of each task."
    )
    return _table(caption, head, rows)


def _median_to_target(axis: Axis, figures: TargetFigures | None) -> str:
    return "no target" if figures is None else spent_text(axis, figures.median)


def _reached(figures: TargetFigures | None) -> str:
    return "no target" if figures is None else f"{figures.reached} of {figures.runs}"


def _improvement_table(comparison: Comparison, axis: Axis) -> str:
    table = comparison.improvement[axis]
    rows = [
        _row(
            _name(comparison, row),
            [_chance(table[row][column]) if column != row else "<td></td>" for column in comparison.methods],
        )
        for row in comparison.methods
    ]
    return _table(f"At equal {axis}", ["", *comparison.methods], rows, kind="chances")


def _chance(chance: Interval) -> str:
    red, green, blue = _WIN if chance.value > 0.5 else _LOSS
    shade = f"rgb({red} {green} {blue} / {abs(chance.value - 0.5) * 1.3:.2f})"
    value = f"<strong>{chance.value:.2f}</strong>" if chance.excludes(0.5) else f"{chance.value:.2f}"
    ends = "" if chance.low is None else f"<small>{chance.low:.2f} to {chance.high:.2f}</small>"
    return f'<td style="background:{shade}">{value}{ends}</td>'


def _by_task(comparison: Comparison) -> str:
    parts = [_facts_by_task(comparison)]
    parts += [_scores_by_task(comparison, axis) for axis in AXES]
    parts += [_targets_by_task(comparison, axis) for axis in AXES]
    parts.append(_trust_by_task(comparison))
    return _section("By task", *parts)


def _facts_by_task(comparison: Comparison) -> str:
    head = ["task", *(f"{axis} compared at" for axis in AXES)]
    head += ["baseline", "speed of light", "expert", "best known", "target"]
    rows = [
        _row(
            escape(task.label),
            map(
                _number,
                [
                    *(spent_text(axis, task.budget[axis]) for axis in AXES),
                    format_seconds(task.baseline_s),
                    format_seconds(task.sol_s),
                    "none" if task.expert is None else f"{task.expert:.3f}",
                    f"{task.best_known:.3f}",
                    "none" if task.target is None else f"{task.target:.3f}",
                ],
            ),
        )
        for task in comparison.tasks
    ]
    caption = "Common budgets, the times between which scores lie, and the scores to reach."
    return _table(caption, head, rows)


def _scores_by_task(comparison: Comparison, axis: Axis) -> str:
    def cell(task: TaskFigures, found: MethodOnTask) -> str:
        best = max(other.final[axis].median for other in task.methods.values())
        return _quartiles(found.final[axis], best=found.final[axis].median == best)

    caption = f"Gap closed at equal {axis}: median over seeds, and quartiles. The best median is bold."
    return _task_table(comparison, caption, cell)


def _targets_by_task(comparison: Comparison, axis: Axis) -> str:
    def cell(_: TaskFigures, found: MethodOnTask) -> str:
        figures = found.target.get(axis)
        if figures is None:
            return "<td></td>"
        small = f"<small>{_reached(figures)} runs</small>"
        return f'<td class="number">{spent_text(axis, figures.median)}{small}</td>'

    part = f"{comparison.fraction:g} of the best known score"
    caption = f"{axis.capitalize()} to the target, {part}: median over seeds."
    return _task_table(comparison, caption, cell)


def _trust_by_task(comparison: Comparison) -> str:
    def cell(_: TaskFigures, found: MethodOnTask) -> str:
        best = "nothing" if found.best_s is None else format_seconds(found.best_s)
        retimed = "" if found.retimed is None else f"<small>again {found.retimed:.3f}</small>"
        return f'<td class="number">{best}{retimed}<small>{found.failed:.0%} failed</small></td>'

    caption = (
        "The best time of all runs at their whole budgets; the median gap closed by the winners when timed "
        "again, in turns with the other finalists; and the share of candidates that failed."
    )
    return _task_table(comparison, caption, cell)


def _task_table(
    comparison: Comparison, caption: str, cell: Callable[[TaskFigures, MethodOnTask], str]
) -> str:
    rows = [
        _row(
            escape(task.label),
            [cell(task, task.methods[m]) if m in task.methods else "<td></td>" for m in comparison.methods],
        )
        for task in comparison.tasks
    ]
    return _table(caption, ["task", *comparison.methods], rows)


def _quartiles(found: Quartiles, best: bool) -> str:
    median = f"<strong>{found.median:.3f}</strong>" if best else f"{found.median:.3f}"
    return f'<td class="number">{median}<small>{found.low:.3f} to {found.high:.3f}</small></td>'


def _table(caption: str, head: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    css = f' class="{kind}"' if kind else ""
    return (
        f'<div class="wide"><table{css}>\n<caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table></div>"
    )


def _row(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>'


def _number(text: str) -> str:
    return f'<td class="number">{escape(text)}</td>'


def _name(comparison: Comparison, method: str) -> str:
    look = looks_of(comparison.methods)[method]
    # Methods that share a colour differ in their dashes, which a ring stands for.
    kind = "dot" if look.dashes == "-" else "dot ring"
    return f'<span class="{kind}" style="color:var({_VARIABLES[look.colour]})"></span>{escape(method)}'


def _definitions(comparison: Comparison) -> str:
    paper = "Agarwal et al. 2021, “Deep Reinforcement Learning at the Edge of the Statistical Precipice”"
    meanings = {
        "Score": "the gap closed by the best correct and stable time so far, ln(baseline / time) / "
        "ln(baseline / speed of light), with the run's own baseline. The untouched candidate counts, so a "
        "score is never below 0; a failed trial leaves it as it was.",
        "Equal budgets": "on each task, scores are compared at the smallest number of measurements, and of "
        "seconds, that all runs on it spent. A run that tried every candidate keeps its score. Seconds pay "
        "for proposing, compiling, checking and timing.",
        "Interquartile mean": "over all runs of all common tasks, without the highest and lowest quarter.",
        "Intervals": f"95%, from resamples of the runs within each task ({paper}).",
        "Probability of improvement": "the share of pairs of runs in which one method ends better, ties "
        "counting one half, averaged over the tasks.",
        "Target": f"{comparison.fraction:g} of the best score that any run, or the expert, reached on the "
        "task. Runs that do not reach it within the budget count as infinitely long in medians.",
    }
    items = "".join(f"<li><b>{escape(word)}</b>: {escape(text)}</li>\n" for word, text in meanings.items())
    return _section("What the figures mean", f"<ul>\n{items}</ul>")


def _all_runs(comparison: Comparison, command: str) -> str:
    head = ["trace", "task", "method", "seed", "measurements", "seconds", "failed", "best time"]
    head += [f"gap closed at equal {axis}" for axis in AXES]
    rows = [
        _row(
            escape(run.path),
            [
                f"<td>{escape(run.task)}</td><td>{_name(comparison, run.method)}</td>",
                *map(_number, [str(run.seed), str(run.measurements), f"{run.seconds:.1f}", str(run.failed)]),
                _number("" if run.best_s is None else format_seconds(run.best_s)),
                *(_number(f"{run.final[axis]:.3f}") for axis in AXES),
            ],
        )
        for run in comparison.runs
    ]
    again = f"<p>Made by <code>{escape(command)}</code></p>" if command else ""
    table = _table("Every run that was compared", head, rows)
    details = f"<details><summary>{_plural(len(rows), 'run')}</summary>\n{table}\n</details>"
    return _section("Runs", details, again)


def _curves_label(axis: Axis) -> str:
    return f"Gap closed against {axis}, by task and method"


def _svg(figure: Figure, label: str) -> str:
    """A picture as a part of the page: text as text, colours by name, no reference to anything outside."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(text, format="svg", transparent=True)
    drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", drawing).replace("xlink:href", "href")
    for colour, variable in _VARIABLES.items():
        drawing = drawing.replace(colour, f"var({variable})")
    drawing = re.sub(r"font: ([^;\"]*?px) [^;\"]*", r"font: \1 system-ui, sans-serif", drawing)
    drawing = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", drawing)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawing))
    drawing = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", drawing)
    drawing = re.sub(r' d="[^"]*"', _rounded, drawing)
    width, height = figure.get_size_inches() * 72
    drawing = re.sub(
        r"<svg[^>]*>",
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'style="max-width:{width * 1.25:.0f}px">',
        drawing,
        count=1,
    )
    return f'<figure class="wide">{drawing.strip()}</figure>'


def _rounded(path: re.Match[str]) -> str:
    """A path in hundredths of a point, which nobody sees and which is a third shorter."""
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", path[0])


def _style() -> str:
    def variables(values: dict[str, str]) -> str:
        return "".join(f"{name}:{value};" for name, value in values.items())

    return (
        f":root{{color-scheme:light dark;{variables(_LIGHT)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{variables(_DARK)}}}}}\n{_RULES}"
    )


_RULES = """\
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.7rem;margin:0 0 .25rem}
h2{font-size:1.25rem;margin:2.75rem 0 .75rem;padding-top:.75rem;border-top:1px solid var(--grid)}
h3{font-size:1rem;margin:1.75rem 0 .25rem}
p{max-width:46rem;margin:.25rem 0 .75rem}
.lead{color:var(--muted);font-size:1.05rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:1rem 0;font-size:.85rem}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
.notes{background:var(--note);border-radius:6px;padding:.7rem 1rem .7rem 2rem;margin:1rem 0}
.wide{overflow-x:auto;margin:0 0 1.25rem}
svg{display:block;width:100%;min-width:640px;height:auto}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
caption{caption-side:top;text-align:left;color:var(--muted);padding:.5rem 0;max-width:46rem}
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--grid);text-align:left;vertical-align:top}
thead th:not(:first-child){text-align:right}
thead th{color:var(--muted);font-weight:600;border-bottom:2px solid var(--grid);vertical-align:bottom}
tbody th{font-weight:500;white-space:nowrap}
.number{text-align:right;white-space:nowrap}
td small{display:block;color:var(--muted)}
.chances td{text-align:center;min-width:5.5rem}
.chances td small{color:inherit;opacity:.75}
.chances thead th:not(:first-child){text-align:center}
.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.5em;background:currentColor}
.ring{background:none;border:.2em solid currentColor}
code{background:var(--panel);border-radius:4px;padding:.15rem .35rem;overflow-wrap:anywhere}
summary{cursor:pointer;font-weight:600}
li{margin:.35rem 0;max-width:46rem}
@media print{main{max-width:none}details>*{display:block}}
"""
