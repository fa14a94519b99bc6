import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch_mlir import ir, passmanager

from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS, LEVELS
from solgym.envs.mlir_passes.client import ModuleView, default_pass_worker
from solgym.envs.mlir_passes.facts import PRECONDITIONS
from solgym.envs.mlir_passes.programs import parse_task
from solgym.envs.mlir_passes.transforms import GENERATORS

CONTEXT = ir.Context()


def test_there_are_at_least_120_actions_and_finish_is_the_first():
    assert len(ACTIONS) > 120
    assert ACTIONS[0].name == "finish"
    assert (ACTIONS[0].pipeline, ACTIONS[0].transform, ACTIONS[0].needs) == ("", "", ())


def test_every_level_has_actions_and_every_action_a_level():
    assert {action.level for action in ACTIONS} == set(LEVELS)


def test_names_are_unique_and_in_kebab_case():
    assert len(ACTION_INDEX) == len(ACTIONS)
    for action in ACTIONS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", action.name), action.name


def test_no_two_actions_do_the_same():
    assert len({(action.pipeline, action.transform) for action in ACTIONS}) == len(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS[1:], ids=lambda action: action.name)
def test_an_action_is_one_pipeline_or_one_script_and_parses(action):
    assert bool(action.pipeline) != bool(action.transform)
    assert set(action.needs) <= set(PRECONDITIONS)
    assert action.summary
    if action.pipeline:
        passmanager.PassManager.parse(f"builtin.module({action.pipeline})", CONTEXT)
    else:
        assert action.transform.split()[0] in GENERATORS


def test_the_catalogue_is_read_without_mlir():
    code = "import sys, solgym.envs.mlir_passes.catalogue; sys.exit('torch_mlir' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


WITNESSES = json.loads(Path(__file__).with_name("witnesses.json").read_text())
"""For each action a program of the suite and the actions after which it has something to do there."""


@pytest.mark.parametrize("action", [action.name for action in ACTIONS if action.name != "finish"])
def test_every_action_changes_something_somewhere_in_the_suite(action):
    task_id, before = WITNESSES[action]
    view = default_pass_worker().step(parse_task(task_id), before.split(), action)
    assert isinstance(view, ModuleView), view
    assert view.changed
