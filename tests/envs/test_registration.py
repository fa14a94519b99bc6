import gymnasium as gym
import pytest

import solgym
from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.envs.kernel_dsl.kernels import KERNELS
from solgym.envs.mlir_passes.programs.table import PROGRAMS, SUITES
from solgym.envs.registration import env_class, environment_of, environments
from solgym.errors import InvalidOption, UnknownTask

NAMES = (
    "GEMM", "BatchedGEMM", "GEMV", "GEMMBiasGELU", "MLP", "Conv2d", "DepthwiseConv2d", "Stencil2d",
    "Stencil3d", "Softmax", "LayerNorm", "Attention", "Transpose", "Reduction", "Elementwise",
)  # fmt: skip


def test_every_kernel_has_an_id():
    ids = [environment.id for environment in environments() if environment.family == "KernelDSL"]
    assert set(ids) == {f"KernelDSL-{name}-v0" for name in NAMES}
    assert len(ids) == len(KERNELS)


def test_every_program_and_suite_has_an_id_and_so_has_ones_own_program():
    ids = {environment.id for environment in environments() if environment.family == "MLIRPasses"}
    names = {*(program.env_id for program in PROGRAMS.values()), *SUITES}
    assert ids == {"MLIRPasses-v0", *(f"MLIRPasses-{name}-v0" for name in names)}
    assert len(names) == len(PROGRAMS) + len(SUITES)


@pytest.mark.parametrize("environment", environments(), ids=lambda environment: environment.id)
def test_the_splits_of_an_environment_share_no_task_and_the_default_is_a_named_one(environment):
    assert not set(environment.train) & set(environment.test)
    assert environment.default_task in ("", *environment.train, *environment.test)


def test_a_task_leads_to_its_environment_and_a_kernel_goes_before_a_program_of_its_name():
    assert environment_of("gemm/f32/m8n8k8").id == "KernelDSL-GEMM-v0"
    assert environment_of("gemm/f32/m8n8k8", "MLIRPasses").id == "MLIRPasses-Gemm-v0"
    with pytest.raises(UnknownTask, match="no kernel 'fft'"):
        environment_of("fft/f32/n8")
    with pytest.raises(InvalidOption, match="KernelDSL or MLIRPasses"):
        environment_of("gemm/f32/m8n8k8", "Kernels")


class OwnEnv(KernelDSLEnv):
    """An environment of a user's."""


def test_the_class_of_an_id_is_found_also_where_a_user_registered_it():
    assert env_class("KernelDSL-GEMM-v0") is KernelDSLEnv
    gym.register("Own-v0", entry_point=OwnEnv)
    try:
        assert env_class("Own-v0") is OwnEnv
    finally:
        del gym.registry["Own-v0"]
    for unknown in ("CartPole-v1", "KernelDSL-GEM-v0"):
        with pytest.raises(InvalidOption, match="solgym list"):
            env_class(unknown)


@pytest.mark.parametrize("environment", environments(), ids=lambda environment: environment.id)
def test_ids_are_registered_as_not_deterministic(environment):
    spec = gym.spec(environment.id)
    assert spec.nondeterministic
    assert spec.kwargs == environment.arguments


def test_ids_work_with_the_module_in_front():
    assert gym.make("solgym:KernelDSL-GEMM-v0").unwrapped.kernel.name == "gemm"


def test_registering_again_changes_nothing():
    before = dict(gym.registry)
    solgym.register_envs()
    assert dict(gym.registry) == before
