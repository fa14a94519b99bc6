"""SOLGym: environments in which agents schedule kernels towards the hardware's speed of light.

Importing the package registers its environments with Gymnasium and does nothing else; everything that
costs time to import is loaded when it is first asked for.

    import gymnasium as gym
    import solgym

    env = gym.make("KernelDSL-GEMM-v0")
"""

from __future__ import annotations

import importlib
from typing import Any

from solgym.envs.registration import register_envs

__version__ = "0.1.0"

_PUBLIC_NAMES = {
    "Budget": "solgym.baselines.budget",
    "Trace": "solgym.baselines.trace",
    "Tuner": "solgym.baselines.tuner",
    "tune": "solgym.baselines.runner",
    "TuningEnv": "solgym.envs.base",
    "KernelTask": "solgym.envs.kernel_dsl.kernels",
    "parse_task": "solgym.envs.kernel_dsl.kernels",
    "Schedule": "solgym.envs.kernel_dsl.schedule",
    "SolgymError": "solgym.errors",
    "HardwareProfile": "solgym.hardware.profile",
    "load_profile": "solgym.hardware.profile",
    "host_profile": "solgym.hardware.profile",
    "Measurement": "solgym.hardware.measurement",
    "MeasurePolicy": "solgym.hardware.measurement",
    "Status": "solgym.hardware.measurement",
    "speed_of_light": "solgym.hardware.speed_of_light",
    "CpuTarget": "solgym.hardware.target",
}

__all__ = ["__version__", "register_envs", *sorted(_PUBLIC_NAMES)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC_NAMES})


register_envs()
