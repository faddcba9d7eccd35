"""The kit of the benches: what becomes of samples, and of runs that fail their check."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.bench import _kit, report
from tests.bench._kit import (
    Bench,
    CheckFailed,
    Figure,
    NotInstalled,
    Sample,
    Samples,
    main,
    measure,
    paired,
    quotient,
    raw,
    single,
)
from tests.bench._raw import RawFile
from tests.bench.limits import limits_table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _figures(samples: Samples) -> list[Figure]:
    return [
        single(samples, "ours", "us", "cost", "ours", unit="us"),
        quotient(samples, ("ours", "us"), ("peer", "us"), "ratio", "ours / peer", goal=("<=", 0.75)),
    ]


def _bench(*, fails: type[Exception] | None = None) -> Bench:
    """Ours takes 1, 2, 3, ... us, a peer 2 us; with `fails` the peer does not get through its second round."""
    rounds = {"ours": 0, "peer": 0}

    def ours() -> Sample:
        rounds["ours"] += 1
        return {"us": rounds["ours"]}

    def peer() -> Sample:
        rounds["peer"] += 1
        if fails is not None and rounds["peer"] == 2:
            raise fails("nine of ten")
        return {"us": 2.0}

    return Bench("overhead", {"ours": ours, "peer": peer}, _figures)


def test_ratios_are_taken_within_a_round() -> None:
    """The ratio is the median of the rounds' ratios, with the least and the most of them."""
    samples, failed = measure(_bench(), 3, ())
    assert not failed
    ratio = _figures(samples)[1]
    assert (ratio.value, ratio.least, ratio.most, ratio.met) == (1.0, 0.5, 1.5, False)


@pytest.mark.parametrize(("error", "said"), [(CheckFailed, "check failed"), (NotInstalled, "not run")])
def test_a_variant_that_fails_gives_no_figure(error: type[Exception], said: str) -> None:
    """One failed check takes all of a variant's samples, also those of rounds before, and says why."""
    samples, failed = measure(_bench(fails=error), 3, ())
    assert samples == {"ours": [{"us": 1}, {"us": 2}, {"us": 3}], "peer": []}
    assert said in failed["peer"]
    assert _figures(samples)[1].value is None
    assert _figures(samples)[1].met is None


def _run(bench: Bench, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as left:
        main(bench)
    return left.value.code


def test_rounds_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--append adds rounds to those of the file, and the figures are those of all."""
    assert _run(_bench(), monkeypatch, "--rounds", "1", "--out", str(tmp_path)) == 0
    assert _run(_bench(), monkeypatch, "--rounds", "3", "--out", str(tmp_path), "--append") == 0
    document = json.loads((tmp_path / "overhead.json").read_text())
    assert [sample["us"] for sample in document["samples"]["ours"]] == [1, 1, 2, 3]
    assert [spell["rounds"] for spell in document["spells"]] == [1, 3]
    assert document["figures"][1]["value"] == 0.75
    assert document["figures"][1]["met"]


def test_each_spell_keeps_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit that was measured stands in the JSON and in the table, and whether the code was another."""
    for at in ({"commit": "a" * 40, "dirty": False}, {"commit": "b" * 40, "dirty": True}):
        monkeypatch.setattr(_kit, "commit", lambda at=at: at)
        _run(_bench(), monkeypatch, "--rounds", "1", "--out", str(tmp_path), "--append")
    (document,) = report.documents(tmp_path)
    assert [(spell["commit"], spell["dirty"]) for spell in document["spells"]] == [("a" * 40, False), ("b" * 40, True)]
    assert "(2 rounds, commits aaaaaaa, bbbbbbb with changes)" in report.table([document])
    del document["spells"][0]["commit"]
    assert "commits not recorded, bbbbbbb with changes" in report.table([document])


def _committed(root: Path) -> None:
    """A repository with one commit of one file."""
    (root / "async_orch").mkdir(parents=True)
    (root / "async_orch" / "a.py").write_text("a = 1\n")
    for arguments in (["init", "-q"], ["add", "-A"], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "c"]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)


def test_the_commit_is_dirty_where_measured_code_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed engine makes the commit dirty, a changed page does not, and without git there is no commit."""
    root = tmp_path / "checkout"
    _committed(root)
    monkeypatch.setattr(_kit, "__file__", str(root / "tests" / "bench" / "_kit.py"))
    (root / "page.md").write_text("new\n")
    found = _kit.commit()
    assert (len(found["commit"]), found["dirty"]) == (40, False)
    (root / "async_orch" / "a.py").write_text("a = 2\n")
    assert _kit.commit() == {"commit": found["commit"], "dirty": True}
    monkeypatch.setattr(_kit, "__file__", str(tmp_path / "elsewhere" / "tests" / "bench" / "_kit.py"))
    assert _kit.commit() == {"commit": None, "dirty": None}


def test_rounds_of_some_variants_cannot_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--append --only is refused, and samples that are not equally many are not paired: rounds would get mixed up."""
    assert _run(_bench(), monkeypatch, "--append", "--only", "ours", "--out", str(tmp_path)) == 2
    assert "different rounds" in capsys.readouterr().err
    with pytest.raises(ValueError, match="ours has 2 rounds and peer 1"):
        paired({"ours": [{"us": 1.0}] * 2, "peer": [{"us": 1.0}]}, "ours", "peer")


def test_a_figure_above_a_goal_of_its_neighbour_is_named(tmp_path: Path) -> None:
    """What has no goal is not counted as missed, but named where it is above the goal that was set beside it."""
    figure = {
        "name": "to_queue_uvloop", "title": "ours / queue, uvloop", "value": 0.96, "least": 0.9, "most": 1.0,
        "unit": "x", "goal": None, "met": None,
    }  # fmt: skip
    spells = [{"rounds": 1, "commit": None, "dirty": None}]
    document = {"bench": "overhead", "figures": [figure], "failed": {}, "spells": spells}
    assert "- ours / queue, uvloop: 0.960; on the stock loop" in report.table([document])
    figure["value"] = 0.7
    assert "worth knowing" not in report.table([document])


def test_a_failed_check_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that failed is not made good by adding rounds that pass it, and the exit code says so."""
    assert _run(_bench(fails=CheckFailed), monkeypatch, "--rounds", "2", "--out", str(tmp_path)) == 1
    more = ["--rounds", "1", "--out", str(tmp_path), "--append"]
    assert _run(_bench(), monkeypatch, *more) == 1
    document = json.loads((tmp_path / "overhead.json").read_text())
    assert document["failed"] == {"peer": "check failed: nine of ten"}
    assert document["samples"]["peer"] == []


def test_the_table_says_what_was_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that misses its goal is marked, and a variant without a figure says why it has none."""
    _run(_bench(fails=NotInstalled), monkeypatch, "--rounds", "2", "--out", str(tmp_path))
    text = report.table(report.documents(tmp_path))
    assert "| ours | 1.500 us | 1.000 to 2.00 |  |  |" in text
    assert "not run: needs nine of ten" in text
    _run(_bench(), monkeypatch, "--rounds", "3", "--out", str(tmp_path))
    assert "| ours / peer | 1.000 | 0.500 to 1.500 | <= 0.75 | **missed** |" in report.table(report.documents(tmp_path))


def test_the_published_table_is_that_of_the_raw_samples() -> None:
    """docs/benchmarks.md shows what the JSON beside it holds, each figure computed again from its samples."""
    folder = DOCS / "benchmarks"
    found = report.documents(folder)
    assert len(found) >= 10
    page = (DOCS / "benchmarks.md").read_text("utf-8")
    assert report.filled(page, found) == page
    for document in found:
        bench = importlib.import_module(f"tests.bench.{document['bench']}").BENCH
        again = [json.loads(json.dumps(asdict(figure))) for figure in bench.figures(document["samples"])]
        # Also those that the JSON lacks: a figure that was added since must be measured before it is published.
        assert again == [{key: figure[key] for key in again[0]} for figure in document["figures"]], document["bench"]


def test_the_limits_table_is_made_of_the_rounds() -> None:
    """Each line is the median over the rounds of ours by the limit; of a rate the other way round: 1 is the limit."""
    threads = {
        "limit": [{"wall_us": 10.0}, {"wall_us": 20.0}, {"wall_us": 10.0}],
        "host": [{"wall_us": 70.0}, {"wall_us": 160.0}, {"wall_us": 90.0}],
        "sim": [{"wall_us": 20.0}] * 3,
    }
    copies = {"copies": [{"pipeline_gb_per_s": 4.0, "bare_gb_per_s": 5.0, "beside_gb_per_s": 4.2, "beside_ratio": 0.9}]}
    table = limits_table([{"bench": "threads", "samples": threads}, {"bench": "copies", "samples": copies}])
    assert "| two threads and the loop, wake-ups only | 10.0 us | 90.0 us | 8.00 (7.00 to 9.00) |" in table
    assert "| bare copies over the same buffers | 5.00 GB/s | 4.00 GB/s | 1.250 (1.250 to 1.250) |" in table
    threads["sim"] = []
    assert "wake-ups" not in limits_table([{"bench": "threads", "samples": threads}])


def test_a_page_without_markers_is_refused() -> None:
    """A page that lost a marker is not left with an old table, silently."""
    with pytest.raises(ValueError, match="has no <!-- limits -->"):
        report.filled(f"{report.BEGIN}{report.END}", [])


def test_the_readme_names_the_published_overhead() -> None:
    """The README's factor to a bare queue pipeline, and its microseconds a step, are the published ones."""
    document = raw(DOCS / "benchmarks" / "overhead.json")
    known = {figure["name"]: figure["value"] for figure in document["figures"]}
    text = " ".join((DOCS.parent / "README.md").read_text("utf-8").split())
    [said] = re.findall(r"([0-9.]+) times a bare `asyncio.Queue` pipeline", text)
    assert float(said) == round(known["to_queue_asyncio"], len(said.partition(".")[2]))
    [said] = re.findall(r"the engine itself takes about ([0-9]+) of them", text)
    assert int(said) == round(known["ours_asyncio"])


def test_a_raw_file_says_where_its_figures_are_from(tmp_path: Path) -> None:
    """Samples are kept with command, commit, machine and the load before and after; without a path nothing is."""
    path = tmp_path / "deep" / "figures.json"
    for given in (path, None):
        kept = RawFile(given, "python -m something")
        kept.figures = {"ms": {"a \u00b5": [1.5, 2]}, "none": {}}
        kept.write()
    document = json.loads(path.read_text("utf-8"))
    assert document["figures"] == {"ms": {"a \u00b5": [1.5, 2]}, "none": {}}
    assert document["command"] == "python -m something"
    assert document["commit"]
    assert len(document["load_before"]) == len(document["load_after"]) == 3
    assert document["machine"]["cores"] >= 1
    assert [each.name for each in tmp_path.iterdir()] == ["deep"]
