"""The report's page: its content, and how it behaves in a browser."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from async_orch.analysis import LogFrames, analyze, longest_bubbles, read_frames, report_page
from async_orch.analysis._render import group_table
from async_orch.cli import main
from async_orch.logs import StepRecord, encode_line
from tests.browser import chromium
from tests.unit.step_records import REPORT_LINE, step_record

PERIOD_NS = 40_000_000
OPENED = (
    '{"event":"orchestrator.opened","schema":1,"run_id":"run-0","pid":1,"mono_ns":1,"wall_ns":2,'
    '"config":{"mode":"pipelined","slots":3,"note":"</script><b>"}}\n'
)


def steps(count: int, run_id: str = "run-0", slow: int | None = None) -> list[StepRecord]:
    """A step every 40 ms; `slow` is one that was accepted 400 ms late."""
    starts = [name for name in step_record().__struct_fields__ if name.endswith("_start_ns")]
    base = step_record(total_ns=72_715_900, retire_start_ns=73_715_100)
    records = []
    for seq in range(count):
        late = 400_000_000 if slow is not None and seq >= slow else 0
        moved = {name: getattr(base, name) + seq * PERIOD_NS + late for name in [*starts, "submit_ns", "accept_ns"]}
        bubble = PERIOD_NS - 36_800_000 + (400_000_000 if seq == slow else 0)
        cold = "first_launch" if seq == 0 else "slot_grown" if seq == 7 else None
        figures = {"bubble_ns": bubble if seq else None, "cold_reason": cold, "h2d_ns": 32_000_000}
        records.append(step_record(run_id=run_id, seq=seq, step_id=seq, **moved, **figures))
    return records


def log_of(*records: StepRecord, head: str = OPENED) -> bytes:
    return head.encode() + b"".join(map(encode_line, records))


def frames_of(*records: StepRecord) -> LogFrames:
    return read_frames(io.BytesIO(log_of(*records)))


def data_of(page: bytes) -> dict[str, Any]:
    found = re.search(rb'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def test_page_holds_the_figures_of_the_table() -> None:
    """Every cell of the table is in the page, once for each group of each run, as is the verdict."""
    data = log_of(*steps(50, slow=20))
    page = unescape(report_page(read_frames(io.BytesIO(data)), "run.jsonl").decode())
    for group in analyze(io.BytesIO(data)).summary.runs[0].groups:
        title, table = group_table(group)
        assert title in page
        for row in table[1:]:
            assert "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" in page
        assert group.verdict is not None
        assert group.verdict.text in page


def test_page_is_self_contained_and_safe() -> None:
    """No address of another file or host is in it, and text of the log cannot leave its place."""
    page = report_page(frames_of(*steps(20)), "<b>&.jsonl").decode()
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:,)""", page)
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<script") == page.count("</script>") == 2
    assert "&lt;b&gt;&amp;.jsonl" in page
    assert "&lt;/script&gt;&lt;b&gt;" in page


def test_small_run_is_drawn_whole() -> None:
    """Up to some thousand steps all are drawn, cold steps and growth are marked, and slots in use come from the log."""
    (run,) = data_of(report_page(frames_of(*steps(50)), "x"))["runs"]
    assert run["steps"]["seq"] == list(range(50))
    assert run["slots"] == 3
    assert dict(zip(run["marked"]["seq"], run["marked"]["why"], strict=True)) == {0: "first_launch", 7: "slot_grown"}
    assert max(run["occupancy"]["count"]) == 2
    assert run["occupancy"]["count"][-1] == 0
    assert [sum(histogram["counts"]) for histogram in run["histograms"]] == [
        histogram["steps"] for histogram in run["histograms"]
    ]


def test_long_run_is_sampled_with_every_outlier() -> None:
    """A long run is drawn in windows, the page says so, and each step far off is drawn and marked."""
    records = steps(20_000)
    odd = {4_321: 3 * 10**9, 15_007: 2 * 10**9, 19_990: 10**9}
    for seq, late in odd.items():
        for later in range(seq, 20_000):
            moved = (records[later].accept_ns or 0) + late
            records[later] = msgspec.structs.replace(records[later], accept_ns=moved)
    page = report_page(frames_of(*records), "x")
    (run,) = data_of(page)["runs"]
    assert len(run["steps"]["seq"]) < 10_000
    assert set(odd) <= set(run["steps"]["seq"])
    marked = dict(zip(run["marked"]["seq"], run["marked"]["why"], strict=True))
    assert {seq for seq, why in marked.items() if why == "outlier"} == set(odd)
    assert max(run["times"]["max"]) == 3 * 10**9 + PERIOD_NS
    assert b"The timeline is a sample" in page
    assert b"with 3 of 3 outliers" in page


def test_bubbles_are_found_with_their_cause() -> None:
    """The longest bubble is the one that was made, by its length and by what the step waited for."""
    first, *_ = longest_bubbles(frames_of(*steps(50, slow=20)).steps)
    assert (first.seq, first.bubble_ns, first.cause) == (20, 403_200_000, "caller")
    late = {"build_start_ns": 80_000_000, "build_ns": 90_000_000, "accept_ns": 70_000_000, "bubble_ns": 126_286_000}
    late |= {"acquire_start_ns": 170_000_000, "h2d_start_ns": 170_000_100, "h2d_ns": 20_000_000}
    late |= {"launch_start_ns": 170_000_200, "device_start_ns": 200_000_000, "retire_start_ns": 236_900_000}
    slow_build = [step_record(seq=0), step_record(seq=1, total_ns=166_901_000, **late)]
    (bubble,) = longest_bubbles(frames_of(*slow_build).steps)
    assert bubble.cause == "build"
    assert bubble.parts["build"] == 90_000_000


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes the page; lines without a timeline give a page with their figures."""
    out = tmp_path / "run.html"
    log = tmp_path / "lines.log"
    log.write_text(REPORT_LINE + "\n")
    assert main(["report", str(log), "-o", str(out)]) == 0
    assert "107.08 ms (105.72 + 1.36)" in out.read_text("utf-8")
    assert data_of(out.read_bytes())["runs"] == []
    assert main(["report", str(log)]) == 2
    assert main(["report", str(log), "-o", str(tmp_path / "no" / "run.html")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as session:
        yield session


def test_page_works_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """In Chromium the page opens without console errors, draws, zooms by button, wheel and key, and shows the table."""
    page = tmp_path / "run.html"
    frames = frames_of(*steps(60, slow=20), *steps(30, "run-1"))
    page.write_bytes(report_page(frames, "run.jsonl"))
    browser.get(page.as_uri())

    def view() -> tuple[float, float]:
        found = browser.execute_script("return window.asyncOrchReport.view")
        return found["from"], found["to"]

    def click(element: str) -> None:
        browser.find_element("id", element).click()

    def width() -> float:
        return view()[1] - view()[0]

    assert browser.execute_script("return window.asyncOrchReport.drawn") > 20
    before = width()
    click("in")
    assert width() == pytest.approx(before / 2)
    click("out")
    assert width() == pytest.approx(before)
    wheel = (
        "document.getElementById('lanes').dispatchEvent(new WheelEvent('wheel', {deltaY: arguments[0], clientX: 600}))"
    )
    browser.execute_script(wheel, -100)
    assert width() == pytest.approx(before * 0.8)
    browser.find_element("id", "lanes").send_keys("0")
    assert width() == pytest.approx(browser.execute_script("return window.asyncOrchReport.span"))
    browser.execute_script("document.querySelector('[data-goto]').click()")
    assert width() == pytest.approx(3 * 403_200_000, rel=0.01)
    painted = browser.execute_script(
        "return [...document.querySelectorAll('canvas')].map((canvas) => new Set(new Uint32Array("
        "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)"
    )
    assert all(colours > 2 for colours in painted)
    shown = browser.execute_script("return document.querySelector('section[data-run=\"0\"] table.figures').innerText")
    (cold, *_) = analyze(io.BytesIO(log_of(*steps(60, slow=20)))).summary.runs[0].groups
    for row in group_table(cold)[1][1:]:
        assert "\t".join(cell.strip() for cell in row) in re.sub(r" *\t *", "\t", shown)
    browser.execute_script(
        "const run = document.getElementById('run'); run.value = '1'; run.dispatchEvent(new Event('change'))"
    )
    hidden = "return [...document.querySelectorAll('section')].map((part) => [part.dataset.run, part.hidden])"
    assert all(is_hidden == (number == "0") for number, is_hidden in browser.execute_script(hidden))
    assert browser.get_log("browser") == []
