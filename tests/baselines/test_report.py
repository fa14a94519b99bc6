from types import SimpleNamespace

import pytest
from rich.console import Console

from solgym.baselines.report import Row, comparison_table

ROWS = [
    Row(label, time_s, time_s * 0.99, time_s * 1.01, 2e11, 300.0, 0.98, 0.87)
    for label, time_s in (("numpy 2.4 (OpenBLAS SkylakeX)", 1.18e-3), ("best", 1.04e-3), ("expert", 1.05e-3))
]
RESULT = SimpleNamespace(
    bound=SimpleNamespace(binding="compute", work=SimpleNamespace(flops=2e8, compulsory_bytes=3e6)),
    header=SimpleNamespace(threads=1),
    task=SimpleNamespace(id="gemm/f32/m512n512k512"),
)


def printed(width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(comparison_table(RESULT, ROWS, width))
    return capture.get()


@pytest.mark.parametrize("width", [40, 50, 60, 70, 80, 200])
def test_names_times_and_scores_are_whole_at_any_width(width):
    text = printed(width)
    assert "…" not in text
    for part in ("numpy 2.4", "SkylakeX", "best", "expert", "1.04 ms", "gap closed", "0.980"):
        assert part in text


def test_only_narrow_terminals_lose_columns():
    assert all(name in printed(80) for name in ("±", "GFLOP/s", "speedup", "of light"))
    assert not any(name in printed(40) for name in ("±", "GFLOP/s", "speedup", "of light"))
