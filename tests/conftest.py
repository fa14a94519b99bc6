"""What all tests share: a cache folder of their own, so that no test sees or touches the user's.

The machine is calibrated at most once a session. Under xdist that happens before the workers start: a
calibration beside running tests would find peaks that are too low, and correct kernels would then look faster
than light. Set SOLGYM_TEST_CACHE_DIR to a folder to keep the calibration between sessions.
"""

import os
import shutil
import signal
import tempfile

import pytest

_FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # A shell may start a run in the background with SIGINT ignored, which processes under test would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the folder comes with the environment
    kept = os.environ.get("SOLGYM_TEST_CACHE_DIR")
    folder = kept or tempfile.mkdtemp(prefix="solgym-tests-")
    os.environ["SOLGYM_CACHE_DIR"] = folder
    if not kept:
        config.stash[_FOLDER] = folder


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    parallel = "PYTEST_XDIST_WORKER" not in os.environ and config.getoption("numprocesses", None)
    if parallel and not config.option.collectonly:
        from solgym.hardware.profile import host_profile

        host_profile()


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_FOLDER, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
