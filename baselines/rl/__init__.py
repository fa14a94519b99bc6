"""Reinforcement learning: training, trained policies, and what they achieve."""
