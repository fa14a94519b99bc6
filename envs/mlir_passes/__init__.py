"""The family ``MLIRPasses``: programs, passes, sequences of them, features and environments."""
