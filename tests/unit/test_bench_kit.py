"""The kit of the benches: what becomes of samples, and of runs that fail their check."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.bench import report
from tests.bench._kit import (
    Bench,
    CheckFailed,
    Figure,
    NotInstalled,
    Sample,
    Samples,
    main,
    measure,
    quotient,
    raw,
    single,
)
from tests.bench._raw import RawFile

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


def test_a_failed_check_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that failed is not made good by adding rounds of other variants, and the exit code says so."""
    assert _run(_bench(fails=CheckFailed), monkeypatch, "--rounds", "2", "--out", str(tmp_path)) == 1
    more = ["--rounds", "1", "--out", str(tmp_path), "--append", "--only", "ours"]
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
    assert f"{report.BEGIN}\n{report.table(found)}\n{report.END}" in page
    for document in found:
        bench = importlib.import_module(f"tests.bench.{document['bench']}").BENCH
        again = [json.loads(json.dumps(asdict(figure))) for figure in bench.figures(document["samples"])]
        known = {figure["name"]: figure for figure in document["figures"]}
        for figure in again:
            if figure["name"] in known:
                assert figure == {key: known[figure["name"]][key] for key in figure}


def test_the_readme_names_the_published_overhead() -> None:
    """The README's factor to a bare queue pipeline is the published one."""
    document = raw(DOCS / "benchmarks" / "overhead.json")
    (value,) = [figure["value"] for figure in document["figures"] if figure["name"] == "to_queue_asyncio"]
    [said] = re.findall(
        r"([0-9.]+) times a bare `asyncio.Queue` pipeline", (DOCS.parent / "README.md").read_text("utf-8")
    )
    assert float(said) == round(value, len(said.partition(".")[2]))


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
