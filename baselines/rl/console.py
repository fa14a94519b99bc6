"""Shows a training run in the terminal: a bar with returns, scores and what disturbs the timing."""

from __future__ import annotations

from rich.console import Console

from solgym.baselines.console import ConsoleBar
from solgym.baselines.rl.training import Standing

__all__ = ["ConsoleTrainingListener", "standing_line"]


def standing_line(standing: Standing) -> str:
    """Where a run stands, in one line."""
    parts = [f"{standing.steps}/{standing.total} steps", f"{standing.episodes} episodes"]
    for name, value in (
        ("return", standing.mean_return),
        ("gap closed", standing.mean_gap_closed),
        ("test", standing.test_gap_closed),
    ):
        if value is not None:
            parts.append(f"{name} {value:.3f}")
    if standing.level is not None:
        parts.append(f"level {standing.level[0]} of {standing.level[1]}")
    if standing.discarded_share:
        parts.append(f"{standing.discarded_share:.1%} samples discarded")
    if standing.restarts:
        parts.append(f"{standing.restarts} restarts")
    return "  ".join(parts)


class ConsoleTrainingListener(ConsoleBar):
    """Reports on a training run."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._tenths = -1  # what it begins with is worth a line
        self._stage = ""

    def stage(self, text: str) -> None:
        """Show what is being done."""
        self._bar.update(self._task, description=text)
        what = text.split(",")[0]
        if not self._console.is_interactive and what != self._stage:
            self._stage = what
            self._console.print(f"{what} ...", highlight=False)

    def standing(self, standing: Standing) -> None:
        """Move the bar."""
        self._bar.update(self._task, total=1.0)
        fraction = min(standing.steps / standing.total, 1.0)
        self._move(fraction, standing_line(standing), standing.seconds, f"  {standing.seconds:.0f} s")
