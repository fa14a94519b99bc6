"""An agent that takes random legal actions: how to use the action mask and read the results.

Run it with: python examples/random_agent.py
"""

import gymnasium as gym

import solgym  # noqa: F401  (registers the environments)


def main() -> None:
    env = gym.make("KernelDSL-GEMM-v0", task="gemm/f32/m128n128k128", max_steps=12)
    env.action_space.seed(0)
    _, info = env.reset(seed=0)
    print(f"baseline {info['baseline_s'] * 1e6:.0f} us, speed of light {info['sol_time_s'] * 1e6:.1f} us")
    meanings = env.unwrapped.action_meanings()
    over = False
    while not over:
        action = env.action_space.sample(info["action_mask"])
        _, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        score = f"reward {reward:+.3f}  gap closed {info['gap_closed']:.3f}"
        print(f"{meanings[action]:<32} {info['status']:<8} {score}")
    env.close()


if __name__ == "__main__":
    main()
