"""What this machine's CPU is, and a string that changes whenever measurements on it stop being comparable.

The device is described by what the operating system tells about the CPU: model, instruction sets, cores
that this process may use, caches. Sizes that a virtual machine reports are taken as hints; calibration
checks them against what it measures.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from solgym.errors import InvalidOption
from solgym.hardware.jit import host_cpu, toolchain_fingerprint

__all__ = [
    "Cache",
    "HostDevice",
    "calibration_fingerprint",
    "core_siblings",
    "device_fingerprint",
    "host_device",
]

SYSFS_CPUS = Path("/sys/devices/system/cpu")
PROC_CPUINFO = Path("/proc/cpuinfo")
CALIBRATION_METHOD = 2
"""Raise this when calibration changes, so that profiles made in the old way are made again."""

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Cache:
    """One data or unified cache level, as the operating system reports it."""

    name: str
    size_bytes: int
    instances: int
    shared: bool


@dataclass(frozen=True)
class HostDevice:
    """The CPU of this machine as far as this process may use it.

    Attributes:
        model: the vendor's model name.
        stepping: vendor, family, model and stepping numbers, joined by dots.
        isa: hash of LLVM's feature string.
        vector_bits: width of the widest vectors.
        cpus: one logical CPU for each usable physical core, by number.
        caches: data caches, the nearest first; empty if nothing is reported.
        virtual: whether this is a virtual machine, whose CPUs the hypervisor may move about.
    """

    model: str
    stepping: str
    isa: str
    vector_bits: int
    cpus: tuple[int, ...]
    caches: tuple[Cache, ...]
    virtual: bool = False

    @property
    def cores(self) -> int:
        """Usable physical cores."""
        return len(self.cpus)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _cpuinfo() -> dict[str, str]:
    """The first processor's entries in /proc/cpuinfo; empty where there is none."""
    first = (_text(PROC_CPUINFO) or "").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _sysctl(name: str) -> str | None:
    """A value of macOS's sysctl, or None."""
    if platform.system() != "Darwin":
        return None
    done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None


def _usable_cpus() -> tuple[int, ...]:
    """One logical CPU per physical core, within this process's affinity mask and CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
    else:
        allowed = list(range(int(_sysctl("hw.perflevel0.physicalcpu") or os.cpu_count() or 1)))
    first_of_core: dict[str, int] = {}
    for cpu in allowed:
        siblings = _text(SYSFS_CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        first_of_core.setdefault(siblings, cpu)
    cpus = list(first_of_core.values())
    quota, _, period = (_text(CGROUP_QUOTA) or "max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cpus = cpus[: max(1, math.ceil(int(quota) / int(period)))]
    return tuple(cpus)


def core_siblings(cpu: int) -> frozenset[int]:
    """The logical CPUs of the physical core that ``cpu`` belongs to, itself among them."""
    text = _text(SYSFS_CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
    siblings = {cpu}
    for part in text.split(","):
        first, _, last = part.partition("-")
        siblings.update(range(int(first), int(last or first) + 1))
    return frozenset(siblings)


def parse_size(text: str) -> int:
    """Bytes in a size as sysfs writes it: ``48K``, ``32M``.

    >>> parse_size("48K")
    49152
    """
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _caches(cpus: tuple[int, ...]) -> tuple[Cache, ...]:
    """Data caches from sysfs, else from macOS's sysctl, else none."""
    found = []
    for index in sorted((SYSFS_CPUS / f"cpu{cpus[0]}/cache").glob("index*")):
        level, size = _text(index / "level"), _text(index / "size")
        if _text(index / "type") not in ("Data", "Unified") or not level or not size:
            continue
        groups = {_text(SYSFS_CPUS / f"cpu{cpu}/cache/{index.name}/shared_cpu_list") for cpu in cpus}
        instances = len(groups)
        found.append(Cache(f"L{level}", parse_size(size), instances, instances < len(cpus)))
    if not found:
        for name, key in (("L1", "hw.perflevel0.l1dcachesize"), ("L2", "hw.perflevel0.l2cachesize")):
            value = _sysctl(key)
            if value:
                per_core = name == "L1"
                found.append(Cache(name, int(value), len(cpus) if per_core else 1, not per_core))
    return tuple(sorted((c for c in found if c.name in ("L1", "L2", "L3")), key=lambda c: c.name))


@functools.cache
def host_device() -> HostDevice:
    """Describe the CPU that this process runs on."""
    info, llvm_cpu, cpus = _cpuinfo(), host_cpu(), _usable_cpus()
    model = info.get("model name") or _sysctl("machdep.cpu.brand_string") or platform.processor()
    numbers = (info.get(key, "") for key in ("vendor_id", "cpu family", "model", "stepping"))
    return HostDevice(
        model=model or llvm_cpu.name,
        stepping=".".join(filter(None, numbers)) or platform.machine(),
        isa=hashlib.sha256(llvm_cpu.features.encode()).hexdigest()[:12],
        vector_bits=llvm_cpu.vector_bits,
        cpus=cpus,
        caches=_caches(cpus),
        virtual="hypervisor" in info.get("flags", "").split(),
    )


@functools.cache
def device_fingerprint() -> str:
    """Identify CPU model, instruction sets, usable cores and caches; equal only on an equal device."""
    device = host_device()
    caches = ",".join(f"{c.name}:{c.size_bytes}x{c.instances}" for c in device.caches) or "caches-unknown"
    return f"{device.model}/{device.stepping}/{device.isa}/cores-{device.cores}/{caches}"


def check_threads(threads: int | None) -> int:
    """The number of threads to calibrate for: all usable cores, or fewer if asked.

    Raises:
        InvalidOption: fewer than one, or more than there are usable cores.
    """
    cores = host_device().cores
    if threads is not None and not 1 <= threads <= cores:
        raise InvalidOption(f"threads is {threads}; this process may use 1 to {cores} physical cores")
    return threads or cores


def calibration_fingerprint(threads: int | None = None) -> str:
    """Identify all that a calibration depends on: device, threads, toolchain, version, method."""
    # Imported here: the package's top level imports sub-packages.
    from solgym import __version__

    return (
        f"{device_fingerprint()}/threads-{check_threads(threads)}/{toolchain_fingerprint()}"
        f"/solgym-{__version__}/calibration-{CALIBRATION_METHOD}"
    )
