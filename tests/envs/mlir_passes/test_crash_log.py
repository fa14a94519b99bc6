"""What goes wrong with passes is kept, whatever happens to the log, and can be met again and made smaller."""

import json
import multiprocessing
import warnings

import pytest

from solgym.envs.mlir_passes import crash_log
from solgym.envs.mlir_passes.client import PassFailure, default_pass_worker
from solgym.envs.mlir_passes.crash_log import (
    FINISH,
    RUN,
    CrashRecord,
    crash_log_path,
    not_recording,
    read_crashes,
    record_failure,
)
from solgym.envs.mlir_passes.crash_study import Failure, Study, open_study
from solgym.envs.mlir_passes.programs import parse_task
from solgym.envs.mlir_passes.sequence import PassSequence
from solgym.envs.mlir_passes.user_program import UserTask
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Status
from solgym.hardware.target import CpuTarget

TASK = parse_task("jacobi_2d/f32/steps4n34")
CRASHED = PassFailure(Status.CRASHED, "SIGSEGV inside the pass")
SEGFAULT = ("affine-vectorize-8-reductions", "affine-fuse-maximal")
"""The fourth reproduction of the findings behind the masks: the second action crashes."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(tmp_path / "deep" / "folder"))
    return tmp_path


def record(action="affine-fuse", actions=(), task=TASK, failure=CRASHED):
    record_failure(task, actions, action, failure)


def test_a_failure_is_kept_with_all_that_it_takes_to_meet_it_again():
    assert read_crashes() == ()
    record("affine-fuse", ("affine-tile-8",))
    (found,) = read_crashes()
    assert (found.program, found.actions, found.action) == (TASK.id, ("affine-tile-8",), "affine-fuse")
    assert (found.status, found.outcome, found.module) == (Status.CRASHED, CRASHED.error, None)
    assert {"torch-mlir", "llvmlite"} <= set(found.versions)


def test_a_failure_that_a_process_has_kept_is_not_kept_again():
    for action in ("affine-fuse", "affine-fuse", "affine-licm", "affine-fuse"):
        record(action)
    assert [found.action for found in read_crashes()] == ["affine-fuse", "affine-licm"]


def test_a_users_program_is_kept_with_its_module():
    arguments = (("A", (4, 4), "f32", "in"), ("B", (4,), "f64", "out"))
    task = UserTask("blur", "module {}", "main", arguments)
    record(FINISH, task=task)
    (found,) = read_crashes()
    assert found.module is not None
    assert (found.module.text, found.module.function, found.module.arguments) == (
        "module {}",
        "main",
        arguments,
    )


def test_lines_that_were_cut_short_or_damaged_cost_only_themselves():
    record("affine-fuse")
    path = crash_log_path()
    whole = path.read_bytes()
    path.write_bytes(whole + b"?\n" + whole[: len(whole) // 2])
    record("affine-licm")
    assert [found.action for found in read_crashes()] == ["affine-fuse", "affine-licm"]


def test_while_things_fail_on_purpose_nothing_is_kept():
    with not_recording():
        record("affine-fuse")
    assert read_crashes() == ()
    record("affine-fuse")
    assert len(read_crashes()) == 1


def test_a_log_that_has_grown_too_large_is_put_aside(monkeypatch):
    record("affine-fuse")
    monkeypatch.setattr(crash_log, "MAX_BYTES", 10)
    record("affine-licm")
    assert [found.action for found in read_crashes()] == ["affine-licm"]
    before = crash_log_path().with_name("crashes-before.jsonl")
    assert [found.action for found in read_crashes(before)] == ["affine-fuse"]


def test_a_log_that_cannot_be_written_disturbs_nothing(folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(folder / "file" / "cache"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record("affine-fuse")
        record("affine-licm")
    assert len([w for w in caught if "cannot keep a failure" in str(w.message)]) == 1


def _record_many(first):
    for number in range(first, first + 20):
        record(f"action-{number}")


def test_processes_that_write_at_the_same_time_lose_nothing():
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_record_many, args=(first,)) for first in (0, 20, 40)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert {found.action for found in read_crashes()} == {f"action-{number}" for number in range(60)}
    assert all(json.loads(line) for line in crash_log_path().read_bytes().splitlines())


def test_a_pass_that_crashes_is_found_again_and_made_smaller():
    harmless = ("canonicalize", "affine-simplify")
    actions = (harmless[0], SEGFAULT[0], harmless[1])
    default_pass_worker().step(TASK, actions, SEGFAULT[1], enforce_masks=False)
    (found,) = read_crashes()
    assert (found.status, found.action) == (Status.CRASHED, SEGFAULT[1])
    with open_study() as study:
        failure = study.repeat(found)
        assert failure is not None
        assert failure.actions == actions
        smaller = study.minimise(failure)
        exported = study.export(smaller)
    assert (smaller.actions, smaller.action, smaller.status) == (
        SEGFAULT[:1],
        SEGFAULT[1],
        Status.CRASHED,
    )
    assert all(smaller.task.extents[name] <= extent for name, extent in TASK.extents.items())
    assert smaller.task.extents["steps"] == 1
    assert exported.blamed == SEGFAULT[1]
    assert "affine-loop-fusion" in exported.pipeline
    assert "vector.transfer_read" in exported.module  # the module before the action that crashes
    assert exported.after is None
    assert len(read_crashes()) == 1


def test_of_a_wrong_result_the_action_that_made_it_wrong_is_blamed():
    # A trip count of 24 is no multiple of 16: the first reproduction of the findings.
    task = parse_task("jacobi_2d/f32/steps4n26")
    actions = ("affine-vectorize-16", "affine-simplify", "affine-licm")
    wrong = PassFailure(Status.WRONG_RESULT, "")
    record(RUN, actions, task, wrong)
    (found,) = read_crashes()
    with open_study() as study:
        failure = study.repeat(found)
        assert failure is not None
        assert (failure.action, failure.status) == (RUN, Status.WRONG_RESULT)
        assert study.minimise(failure).actions == actions[:1]
        exported = study.export(failure)
    assert exported.blamed == actions[0]
    assert "vector.transfer_read" not in exported.module
    assert "vector.transfer_read" in exported.after


def test_what_was_blamed_on_code_generation_is_blamed_on_the_action_that_did_it():
    record(FINISH, SEGFAULT)
    with open_study() as study:
        failure = study.repeat(read_crashes()[0])
    assert failure is not None
    assert (failure.actions, failure.action) == (SEGFAULT[:1], SEGFAULT[1])


def test_what_does_not_fail_any_more_and_what_is_no_action_is_told():
    record("canonicalize")
    record("an-action-of-a-later-version")
    good, unknown = read_crashes()
    with open_study() as study:
        assert study.repeat(good) is None
        with pytest.raises(InvalidOption, match="no action 'an-action"):
            study.repeat(unknown)


def test_a_candidate_that_crashes_when_compiled_is_kept_too():
    with CpuTarget() as target:
        result = target.evaluate(PassSequence(TASK.id, SEGFAULT), TASK)
    assert result.status is Status.CRASHED
    (found,) = read_crashes()
    assert isinstance(found, CrashRecord)
    assert (found.actions, found.action) == (SEGFAULT, FINISH)


def test_the_action_to_blame_is_found_in_few_runs(monkeypatch):
    """A run that does not end takes ten seconds, and a sequence may have two hundred actions."""
    actions = tuple(f"action{i}" for i in range(200))
    wrong = Failure(parse_task("gemm/f32/m8n8k8"), actions, RUN, Status.TIMEOUT, "")
    runs = []

    def run(_, task, prefix):
        runs.append(prefix)
        return wrong if "action137" in prefix else None

    monkeypatch.setattr(Study, "_run", run)
    monkeypatch.setattr(Study, "_text", lambda *_: "module")
    monkeypatch.setattr("solgym.envs.mlir_passes.crash_study.ACTION_INDEX", dict.fromkeys(actions, 0))
    with open_study() as study:
        exported = study.export(wrong)
    assert exported.blamed == "action137"
    assert len(runs) < 12
