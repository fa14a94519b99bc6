"""Baselines: tuners that ask and tell, budgets, run traces, and the tune loop with its tables and plots."""
