"""The pages on environments and kernels say what the code says."""

import inspect
import re
from pathlib import Path

import pytest

from solgym.envs.base import TuningEnv
from solgym.envs.info import StepInfo
from solgym.envs.kernel_dsl.actions import ActionTable
from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.envs.kernel_dsl.kernels import KERNELS, parse_task
from solgym.envs.reset_options import ResetOptions
from solgym.envs.rewards import REWARDS
from tests.envs.fakes import SPEC

DOCS = Path(__file__).parents[2] / "docs"
ENVIRONMENTS = (DOCS / "environments.md").read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^### (\w+)\n(.*?)(?=^### |\Z)", (DOCS / "kernels.md").read_text(), re.M | re.S)
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_every_kernel_has_a_section_with_its_expression_and_tasks(kernel):
    section = SECTIONS[kernel.env_id]
    assert f"KernelDSL-{kernel.env_id}-v0`: {kernel.summary}." in section
    for line in str(parse_task(kernel.default_task_id).computation).splitlines():
        assert f"    {line}\n" in section
    for label, shapes in (("train", kernel.train), ("test", kernel.test)):
        assert f"| {label} | {', '.join(f'`{shape}`' for shape in shapes)} |" in section
    assert f"| default | `{kernel.default_task_id}` |" in section
    assert f"| element types | {', '.join(kernel.dtypes)} |" in section


def test_no_section_is_left_over():
    assert set(SECTIONS) == {kernel.env_id for kernel in KERNELS.values()}


def test_every_argument_has_a_row():
    arguments = {*inspect.signature(TuningEnv).parameters, *inspect.signature(KernelDSLEnv).parameters}
    for name in arguments - {"kernel", "arguments"}:
        assert f"\n| `{name}` |" in ENVIRONMENTS


@pytest.mark.parametrize("name", [*StepInfo.__annotations__, *REWARDS, *ResetOptions.__dataclass_fields__])
def test_every_key_reward_and_option_has_a_row(name):
    assert re.search(rf"^\|.*`{name}`.*\|", ENVIRONMENTS, re.M)


def test_every_kind_of_action_is_in_the_manual():
    for action in ActionTable(SPEC.loop_kinds, SPEC.scopes).actions:
        assert f"\n    | `{action.kind}` |" in (KernelDSLEnv.__doc__ or "")
