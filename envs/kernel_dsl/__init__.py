"""The schedule language: expressions, kernels, loop nests, primitives, code, and the environments on them."""
