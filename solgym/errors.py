"""The errors that SOLGym raises for misuse.

A candidate that fails to compile, crashes or computes something wrong is never an error here: that is
a ``Measurement`` with a status. These classes are for callers who asked for something that cannot be.
"""

from __future__ import annotations


class SolgymError(Exception):
    """Base class of every error that SOLGym raises on purpose."""


class UnknownTask(SolgymError, ValueError):
    """Raised when a task id, kernel name or shape does not exist; the message lists what does."""


class InvalidAction(SolgymError, ValueError):
    """Raised when an action lies outside the action space."""


class ClosedEnvironment(SolgymError, RuntimeError):
    """Raised when an environment or worker pool is used after ``close()``."""


class EnvironmentLost(SolgymError, RuntimeError):
    """Raised when processes that hold environments die again and again, or one fails by itself."""


class InvalidOption(SolgymError, ValueError):
    """Raised when an argument or reset option has a value that is not allowed."""


class InvalidPolicy(SolgymError, ValueError):
    """Raised when a policy file cannot be read or does not fit the environment that it is to act in."""


class InvalidProfile(SolgymError, ValueError):
    """Raised when a hardware profile cannot be read or contradicts itself."""


class InvalidRun(SolgymError, ValueError):
    """Raised when the folder of a training run is damaged, in use, or belongs to another run."""


class InvalidSchedule(SolgymError, ValueError):
    """Raised when a file or object does not have the form of a schedule."""


class InvalidTrace(SolgymError, ValueError):
    """Raised when a trace file is damaged or belongs to another run."""


class IllegalSchedule(SolgymError):
    """Raised by a schedule primitive that refuses, with its reason; environments turn it into a mask."""


class LearningDiverged(SolgymError, ArithmeticError):
    """Raised when the numbers that a network learns are not finite any more."""


class UnsupportedTarget(SolgymError, RuntimeError):
    """Raised when a target does not exist on this machine or lacks what a request needs."""
