"""Environments in which agents make kernels fast; ``envs.base`` is the contract that all of them keep."""
