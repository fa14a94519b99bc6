import json
import math
import os
import signal
import subprocess
import sys

import pytest

from solgym.baselines.budget import Budget
from solgym.baselines.trace import TRACE_NAME, Trace, check_folder, read_trace
from solgym.errors import InvalidTrace
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import header, record


def write(folder, count):
    with Trace.open(folder, header()) as trace:
        for index in range(count):
            trace.append(record(index))
    return folder / TRACE_NAME


def test_what_is_written_is_read_back(tmp_path):
    path = write(tmp_path / "deep" / "run", 3)
    found, records, torn = read_trace(path)
    assert (found, records, torn) == (header(), tuple(record(i) for i in range(3)), 0)
    assert read_trace(path.parent)[1] == records
    assert records[0].result == Measurement.from_json(record(0).measurement)


def test_every_line_is_json_and_the_first_says_what_was_run(tmp_path):
    lines = write(tmp_path, 2).read_text().splitlines()
    first, *rest = map(json.loads, lines)
    assert (first["format"], first["version"], first["seed"]) == ("solgym-trace", 1, 0)
    assert [line["index"] for line in rest] == [0, 1]


def test_a_record_is_on_disk_before_append_returns(tmp_path):
    with Trace.open(tmp_path, header()) as trace:
        trace.append(record(0))
        assert len(read_trace(tmp_path)[1]) == 1


def test_an_infinite_error_survives_though_json_has_none(tmp_path):
    failed = Measurement.failed(Status.WRONG_RESULT, "wrong", max_error=math.inf)
    with Trace.open(tmp_path, header()) as trace:
        trace.append(record(0, measurement=failed.to_json(), best_s=None))
    (found,) = read_trace(tmp_path)[1]
    assert found.result == failed
    assert "Infinity" not in (tmp_path / TRACE_NAME).read_text()


def test_a_continued_trace_keeps_its_records(tmp_path):
    write(tmp_path, 3)
    with Trace.open(tmp_path, header()) as trace:
        assert len(trace.records) == 3
        trace.append(record(3))
    assert len(read_trace(tmp_path)[1]) == 4


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_last_line_cut_short_is_dropped_with_a_notice(tmp_path, kept):
    path = write(tmp_path, 3)
    data = path.read_bytes()
    last = data.rstrip(b"\n").rpartition(b"\n")[2]
    path.write_bytes(data[: len(data) - len(last) - 1] + last[: kept if kept >= 0 else len(last)])
    notices = []
    with Trace.open(tmp_path, header(), notices.append) as trace:
        assert len(trace.records) == 2
        trace.append(record(2))
    assert path.read_bytes() == data
    assert len(notices) == (1 if kept else 0)


@pytest.mark.parametrize(
    ("line", "damage"),
    [
        (1, "{}"),
        (1, "not json"),
        (2, '{"index": 0}'),
        (3, "\x00\x00"),
        (3, ""),
        (4, '{"index": 2, "role": "trial"'),
    ],
)
def test_damage_names_its_line_and_says_what_to_do(tmp_path, line, damage):
    path = write(tmp_path, 3)
    lines = path.read_text().splitlines()
    lines[line - 1] = damage
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidTrace, match=rf"line {line}\b.*--out"):
        Trace.open(tmp_path, header())
    with pytest.raises(InvalidTrace, match=rf"line {line}\b"):
        read_trace(path)


def test_damage_to_the_times_of_a_measurement_is_found(tmp_path):
    path = write(tmp_path, 3)
    lines = path.read_text().splitlines()
    broken = json.loads(lines[2])
    broken["measurement"]["time_s"] = -1.0
    lines[2] = json.dumps(broken)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidTrace, match="line 3"):
        read_trace(path)


@pytest.mark.parametrize(
    "candidate",
    [{}, {"version": 7}, {"version": 1, "task": "gemm/f32/m1n1k1", "steps": []}, {"version": 1, "steps": 3}],
)
def test_a_candidate_that_is_no_schedule_of_the_task_names_its_line(tmp_path, candidate):
    path = write(tmp_path, 3)
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | {"candidate": candidate})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidTrace, match=r"line 3\b.*candidate"):
        read_trace(path)


@pytest.mark.parametrize(
    "budget", [{"budget_measurements": 0}, {"budget_measurements": None}, {"budget_seconds": math.nan}]
)
def test_a_header_without_a_possible_budget_is_refused(tmp_path, budget):
    path = write(tmp_path, 2)
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | budget), *rest]) + "\n")
    with pytest.raises(InvalidTrace, match=r"line 1 is not a header .*budget"):
        read_trace(path)


def test_a_missing_line_is_found(tmp_path):
    path = write(tmp_path, 4)
    lines = path.read_text().splitlines()
    del lines[2]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidTrace, match="line 3: measurement 2 stands where 1 was expected"):
        read_trace(path)


def test_a_damaged_trace_is_left_as_it_is_and_unlocked(tmp_path):
    path = write(tmp_path, 2)
    path.write_text("oops\n")
    for _ in range(2):
        with pytest.raises(InvalidTrace, match="line 1"):
            Trace.open(tmp_path, header())
    assert path.read_text() == "oops\n"


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", 1), ("task", "gemm/f32/m1n1k1"), ("device", "cpu-b"), ("mode", "primitive"), ("profile", "q")],
)
def test_another_run_is_refused_naming_the_field_and_both_values(tmp_path, field, value):
    write(tmp_path, 1)
    with pytest.raises(InvalidTrace, match=field) as caught:
        Trace.open(tmp_path, header(**{field: value}))
    assert repr(value) in str(caught.value)
    assert repr(getattr(header(), field)) in str(caught.value)
    assert "--out" in str(caught.value)


def test_a_larger_budget_continues_the_run_and_is_recorded(tmp_path):
    path = write(tmp_path, 2)
    with Trace.open(tmp_path, header(budget_measurements=20, budget_seconds=5.0)) as trace:
        assert trace.header.budget == Budget(20, 5.0)
        trace.append(record(2))
    found, records, _ = read_trace(path)
    assert found.budget == Budget(20, 5.0)
    assert len(records) == 3


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    with Trace.open(tmp_path, header()), pytest.raises(InvalidTrace, match="another run is writing"):
        Trace.open(tmp_path, header())
    Trace.open(tmp_path, header()).close()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidTrace, match="cannot write to"):
        Trace.open(tmp_path / "file" / "run", header())


def test_whether_a_run_can_write_somewhere_is_found_without_a_trace_of_it(tmp_path, monkeypatch):
    check_folder(tmp_path / "deep" / "run")
    monkeypatch.chdir(tmp_path)
    check_folder("run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidTrace, match="file is a file"):
        check_folder(tmp_path / "file" / "run")
    with pytest.raises(InvalidTrace, match="File name too long"):
        check_folder(tmp_path / ("x" * 300))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InvalidTrace, match="read-only"):
        check_folder(tmp_path / "run")
    monkeypatch.undo()
    write(tmp_path / "run", 1).write_text("oops\n")
    with pytest.raises(InvalidTrace, match="line 1"):
        check_folder(tmp_path / "run")


def test_a_trace_that_does_not_exist_is_one_sentence(tmp_path):
    with pytest.raises(InvalidTrace, match="cannot read the trace"):
        read_trace(tmp_path / "nothing.jsonl")
    with pytest.raises(InvalidTrace, match="cannot read the trace"):
        read_trace(tmp_path)


def test_a_full_disk_is_one_sentence_and_leaves_whole_lines(tmp_path, monkeypatch):
    real_write = os.write

    def write_a_little(file, data):
        if len(data) < 400:
            raise OSError(28, "No space left on device")
        return real_write(file, data[:100])

    with Trace.open(tmp_path, header()) as trace:
        trace.append(record(0))
        monkeypatch.setattr(os, "write", write_a_little)
        with pytest.raises(InvalidTrace, match="No space left"):
            trace.append(record(1))
        monkeypatch.undo()
        trace.append(record(1))
    assert len(read_trace(tmp_path)[1]) == 2


def test_a_killed_writer_leaves_a_trace_that_continues(tmp_path):
    code = (
        "import sys, itertools\n"
        "from solgym.baselines.trace import Trace\n"
        "from tests.baselines.fakes import header, record\n"
        "trace = Trace.open(sys.argv[1], header())\n"
        "for index in itertools.count():\n"
        "    trace.append(record(index))\n"
        "    print(index, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        acknowledged = -1
        while acknowledged < 20:
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    with Trace.open(tmp_path, header()) as trace:
        assert len(trace.records) > acknowledged
        assert [r.index for r in trace.records] == list(range(len(trace.records)))
