"""Packs an experiment's traces into one small archive, to be kept beside its results.

    python benchmarks/pack_traces.py EXPERIMENT docs/results/traces/tuners_kernels.tar.xz
    mkdir -p runs && tar -xJf docs/results/traces/tuners_kernels.tar.xz -C runs   # and back again

The archive holds ``NAME/experiment.json`` and ``NAME/runs/ENV/TASK/METHOD/seedN/trace.jsonl``, whole. Traces
are packed together, not one by one, as they have much in common. Equal traces give equal archives, and
``solgym compare`` reads what ``tar`` unpacks.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
import tarfile
from pathlib import Path

from solgym.baselines.experiment import RECORD_NAME, RUNS_NAME
from solgym.baselines.trace import COMPRESSED_TRACE_NAME, TRACE_NAME
from solgym.hardware.atomic_files import write_atomically


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiment", type=Path, help="folder of an experiment that is finished")
    parser.add_argument("archive", type=Path, help="what to write, NAME.tar.xz")
    options = parser.parse_args()
    record = options.experiment / RECORD_NAME
    traces = sorted((options.experiment / RUNS_NAME).rglob(COMPRESSED_TRACE_NAME))
    if not record.exists() or not traces:
        sys.exit(
            f"{options.experiment} is no finished experiment; give the folder that solgym experiment wrote"
        )
    name = json.loads(record.read_text(encoding="utf-8"))["name"]
    data = pack(name, options.experiment, record, traces)
    options.archive.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.archive, data)
    print(f"{len(traces)} traces in {options.archive}, {len(data) / 1e6:.1f} MB")


def pack(name: str, folder: Path, record: Path, traces: list[Path]) -> bytes:
    """The archive, with nothing in it that depends on when or by whom it was made."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        add(archive, f"{name}/{RECORD_NAME}", record.read_bytes())
        for trace in traces:
            place = trace.relative_to(folder).with_name(TRACE_NAME)
            add(archive, f"{name}/{place.as_posix()}", gzip.decompress(trace.read_bytes()))
    return buffer.getvalue()


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add one file."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    main()
