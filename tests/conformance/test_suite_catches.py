"""The public suite fails a backend that is wrong, with a test that says in which way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CAUGHT = {
    "TestWaitsForNothing": "test_a_wait_holds_the_stream_but_not_the_caller",
    "TestFencesAreEarly": "test_a_fence_is_pending_until_its_work_is_over",
    "TestNotifiesTwice": "test_a_done_fence_notifies_at_once",
    "TestOffsetsAreLost": "test_a_copy_moves_the_given_range_and_nothing_else",
    "TestBoundsAreLost": "test_a_copy_outside_a_buffer_is_refused",
    "TestIsolationDoesNothing": "test_work_behind_a_failure_is_skipped_until_isolation",
    "TestFailuresAreLost": "test_a_failed_kernel_fails_the_fences_behind_it",
    "TestStreamsStayOpen": "test_a_closed_stream_refuses_everything",
    "TestFreeIsNotCounted": "test_a_freed_buffer_cannot_be_used",
    "TestMemoryIsCutShort": "test_an_absurd_size_is_out_of_memory_and_takes_none",
    "TestCloseFreesNothing": "test_closing_frees_every_buffer",
    "TestBeginsWithoutIsolation": "test_a_step_begins_anew_behind_a_failure",
    "TestBeginsWithoutWaiting": "test_a_step_that_begins_after_a_fence_waits_for_it",
    "TestOutputIsLate": "test_a_step_that_begins_after_a_fence_waits_for_it",
}


def test_each_broken_backend_fails_the_test_of_what_it_breaks() -> None:
    """Fourteen backends, each wrong in one way, are all caught, and by the test that names the fault."""
    root = Path(__file__).parents[2]
    wanted = " or ".join(sorted(set(CAUGHT.values())))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-rf", "-k", wanted]
    command.append("tests/conformance/broken_backends.py")
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True, timeout=100)
    failed = set(re.findall(r"^FAILED .*::(\w+)::(\w+)", done.stdout, re.MULTILINE))
    assert failed >= set(CAUGHT.items()), done.stdout
