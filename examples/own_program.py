"""An MLIR file of your own as an environment: every action that is offered, tried once from the start."""

from pathlib import Path

import gymnasium as gym
import numpy as np

import solgym  # noqa: F401 (registers the environments)


def main() -> None:
    env = gym.make("MLIRPasses-v0", program=Path(__file__).with_name("own_program.mlir"), observation="text")
    text, info = env.reset(seed=0)
    print(text)
    for action in np.flatnonzero(info["action_mask"][1:]) + 1:
        env.reset()
        *_, tried = env.step(int(action))
        if not tried["unchanged"]:
            name = env.unwrapped.action_meanings()[action]
            print(f"{name:32s} {tried['status']:13s} speedup {tried['speedup']:5.2f}")


if __name__ == "__main__":
    main()
