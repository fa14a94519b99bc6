import importlib
from collections import Counter
from io import StringIO

import pytest
from rich.console import Console

from solgym.baselines.budget import Budget
from solgym.baselines.console import ConsoleListener, standing
from solgym.baselines.search import Progress
from solgym.commands.terminal import print_as_is
from solgym.hardware.measurement import Status
from tests.baselines.fakes import record


def test_the_standing_says_how_far_how_fast_and_what_failed():
    statuses = Counter({Status.OK: 8, Status.CRASHED: 1, Status.ILLEGAL: 3})
    line = standing(Progress(12, 3.0, Budget(50), record(0, 1e-2), statuses), baseline_s=1e-1, sol_s=1e-3)
    for part in ("12/50", "best 10.0 ms", "gap closed 0.500", "8 ok", "3 illegal", "1 crashed"):
        assert part in line


def test_before_the_first_correct_candidate_the_standing_says_so():
    line = standing(Progress(1, 3.0, Budget(seconds=60), None, Counter({Status.ILLEGAL: 1})), 1e-1, 1e-3)
    assert "no correct candidate yet" in line
    assert "1 tried, 3 s" in line


@pytest.mark.parametrize("terminal", [{}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}])
def test_where_no_bar_can_move_each_tenth_is_a_line(terminal):
    output = StringIO()
    with ConsoleListener(Console(file=output, width=120, no_color=True, **terminal)) as listener:
        listener.stage("measuring the baseline")
        listener.scale("gemm/f32/m8n8k8", 1e-1, 1e-3)
        for trials in range(1, 101):
            listener.progress(
                Progress(trials, 0.0, Budget(100), record(0, 1e-2), Counter({Status.OK: trials}))
            )
        listener.notice("something to know")
    lines = output.getvalue().splitlines()
    assert len(lines) == 1 + 1 + 10 + 1
    assert lines[-1] == "note: something to know"


@pytest.mark.parametrize("module", ["solgym.baselines.console", "solgym.baselines.rl.console"])
def test_a_notice_is_shown_as_it_is(module):
    if ".rl." in module:
        pytest.importorskip("sb3_contrib")
    names = vars(importlib.import_module(module))
    listener = names.get("ConsoleTrainingListener", names.get("ConsoleListener"))
    output = StringIO()
    listener(Console(file=output, width=200)).notice("runs/[/b] :smile:/trace.jsonl was cut")
    assert "note: runs/[/b] :smile:/trace.jsonl was cut" in output.getvalue()


def test_names_from_outside_are_shown_as_they_are():
    output = StringIO()
    print_as_is(Console(file=output, width=20), "results  runs/[/b] :smile:/evaluation.json")
    assert output.getvalue() == "results  runs/[/b] :smile:/evaluation.json\n"
