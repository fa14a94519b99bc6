import gymnasium as gym
import pytest

import solgym
from solgym.envs.kernel_dsl.kernels import KERNELS
from solgym.envs.registration import environments

NAMES = (
    "GEMM", "BatchedGEMM", "GEMV", "GEMMBiasGELU", "MLP", "Conv2d", "DepthwiseConv2d", "Stencil2d",
    "Stencil3d", "Softmax", "LayerNorm", "Attention", "Transpose", "Reduction", "Elementwise",
)  # fmt: skip


def test_every_kernel_has_an_id():
    assert {environment.id for environment in environments()} == {f"KernelDSL-{name}-v0" for name in NAMES}
    assert len(environments()) == len(KERNELS)


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
