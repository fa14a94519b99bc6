"""A random agent chooses MLIR passes; then the shipped expert sequence shows what was possible."""

import gymnasium as gym
import numpy as np

import solgym  # noqa: F401 (registers the environments)


def main() -> None:
    env = gym.make("MLIRPasses-Gemm-v0", task="gemm/f32/m128n128k128", max_steps=12)
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    print(f"{info['task']}: untouched {1e6 * info['baseline_s']:.0f} us")
    over = False
    while not over:
        action = int(rng.choice(np.flatnonzero(info["action_mask"][1:]) + 1))
        _, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        name = env.unwrapped.action_meanings()[action]
        print(f"{name:32s} {info['status']:13s} reward {reward:+.2f}  speedup {info['speedup']:6.2f}")
    _, info = env.reset(options={"warm_start": "expert"})
    print(f"expert: speedup {info['speedup']:.1f}, {info['sol_fraction']:.0%} of the speed of light")


if __name__ == "__main__":
    main()
