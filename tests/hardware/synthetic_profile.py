"""A small made-up machine for tests: round numbers, so that bounds can be worked out by hand."""

from typing import Any

from solgym.hardware.profile import HardwareProfile

KIB, MIB = 1 << 10, 1 << 20


def synthetic_content(**changes: Any) -> dict[str, Any]:
    """The content of a profile file: 2 cores, 100 GFLOP/s f32 each, L1 400, L2 200, DRAM 20 GB/s."""

    def level(name: str, size: int | None, one: float, together: float, **more: Any) -> dict[str, Any]:
        rates = {"1": one, "all": together}
        return {
            "name": name,
            "size_bytes": size,
            "read_bytes_per_s": rates,
            "copy_bytes_per_s": rates,
            "add_bytes_per_s": rates,
            "write_bytes_per_s": rates,
            **more,
        }

    content: dict[str, Any] = {
        "name": "synthetic",
        "kind": "published",
        "target": "cpu",
        "cores": 2,
        "vector_bits": 512,
        "peak_flops_per_s": {
            "fma": {"f32": {"1": 100e9, "all": 200e9}, "f64": {"1": 50e9, "all": 100e9}},
        },
        "levels": [
            level("L1", 32 * KIB, 400e9, 800e9, instances=2),
            level("L2", MIB, 200e9, 400e9, instances=2),
            level("DRAM", None, 20e9, 30e9, shared=True),
        ],
        "launch_overhead_s": {"call": 1e-9, "parallel_region": 1e-6},
        "sources": {"*": "made up for tests"},
    }
    return {**content, **changes}


def synthetic_profile(**changes: Any) -> HardwareProfile:
    """A profile of that machine."""
    return HardwareProfile.model_validate(synthetic_content(**changes))
