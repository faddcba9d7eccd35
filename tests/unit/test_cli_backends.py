"""``async-orch backends`` and what it is made of: a table and JSON of what works here and why not."""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from async_orch_backends.host import HostBackend

from async_orch import _registry
from async_orch.abc import Buffer
from async_orch.cli import main
from async_orch.exceptions import OutOfDeviceMemory

SUPPORT = "measured on PAPER"  # what this module claims for the backends that it opens


class FullBackend(HostBackend):
    """A device without memory to spare, to be told what it lacks."""

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        raise OutOfDeviceMemory(f"needed {nbytes} B,\nfree 0 B")


def raise_something(target: str | None = None, **options: Any) -> None:
    """What a third party's opener might do."""
    raise KeyError("no such thing")


def leave(target: str | None = None, **options: Any) -> None:
    """What a driver's module might do."""
    sys.exit("driver too old")


class PaintedBackend(HostBackend):
    """A device whose texts are written for a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.info = dataclasses.replace(self.info, device="dev\x1b[2J", driver="drv\x9b1m\nhost: x")


def paint(target: str | None = None, **options: Any) -> None:
    """An opener whose reason is written for a terminal."""
    raise RuntimeError("\x1b]0;owned\x07 no device\u202e")


@pytest.mark.parametrize("form", ["table", "json"])
def test_no_foreign_text_reaches_the_terminal_as_it_is(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names, reasons, devices and drivers of third parties are written out where they are not printable."""
    openers = {"na\x1b[1mme": paint, "bad": paint, "drawn": lambda target: PaintedBackend()}
    points = [EntryPoint(name, "a:b", _registry.GROUP) for name in openers]
    monkeypatch.setattr(EntryPoint, "load", lambda point: openers[point.name])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert main(["backends", "--no-measure", "--format", form]) == 0
    out = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in out)
    assert "no device" in out
    if form == "table":
        assert len(out.splitlines()) == 2 + 1 + 2
        assert r"\x1b]0;owned\x07 no device\u202e" in out


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed: one that works, and five that do not, each for a reason of its own."""
    values = {
        "host": "async_orch_backends.host:open_backend",
        "absent": "a_package_that_is_not_there:open_backend",
        "crashes": f"{__name__}:raise_something",
        "exits": f"{__name__}:leave",
        "full": f"{__name__}:FullBackend",
        "nameless": "async_orch_backends.host:no_such_function",
    }
    points = [EntryPoint(name, value, _registry.GROUP) for name, value in values.items()]
    monkeypatch.setattr(EntryPoint, "load", _load)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)


def _load(point: EntryPoint) -> Any:
    if point.name == "full":
        return lambda target: FullBackend()
    if point.name == "crashes":
        return raise_something
    if point.name == "exits":
        return leave
    module = __import__(point.module, fromlist=["_"])
    return getattr(module, point.attr)


@pytest.mark.usefixtures("entries")
def test_one_broken_backend_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Each that fails is one line with its reason, whatever it raised, and listing all is no error."""
    assert main(["backends", "--nbytes", "4096"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["backend", "device"]
    assert lines[1].startswith("host ")
    assert lines[1].endswith("measured on CPU")
    reasons = dict(line.split(": ", 1) for line in lines[3:])
    assert sorted(reasons) == [
        "absent",
        "crashes (measured on PAPER)",
        "exits (measured on PAPER)",
        "full (measured on CPU)",
        "nameless",
    ]
    reasons = {name.partition(" ")[0]: reason for name, reason in reasons.items()}
    assert "a_package_that_is_not_there" in reasons["absent"]
    assert "no such thing" in reasons["crashes"]
    assert reasons["exits"] == "backend 'exits' could not be opened: it raised SystemExit(driver too old)"
    assert reasons["full"] == "needed 4096 B, free 0 B"
    assert "no_such_function" in reasons["nameless"]


@pytest.mark.usefixtures("entries")
def test_json_has_every_figure_for_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    """All entries have the same keys; what was not measured is null, what was is positive."""
    assert main(["backends", "--format", "json", "--nbytes", "100000"]) == 0
    found = {entry["backend"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert len({tuple(entry) for entry in found.values()}) == 1
    host, absent = found["host"], found["absent"]
    assert (host["works"], host["why_not"], host["measured_nbytes"]) == (True, None, 100000)
    assert all(host[key] > 0 for key in ("memory_nbytes", "alloc_ns", "copy_ns", "copy_bytes_per_s"))
    assert not absent["works"]
    assert all(absent[key] is None for key in absent if key not in ("backend", "works", "why_not"))


@pytest.mark.usefixtures("entries")
def test_support_is_told_also_of_what_does_not_open(capsys: pytest.CaptureFixture[str]) -> None:
    """It is what the backend says once it is open, or the SUPPORT of its opener's module; null without either."""
    assert main(["backends", "--format", "json", "--no-measure"]) == 0
    support = {entry["backend"]: entry["support"] for entry in json.loads(capsys.readouterr().out)}
    assert support == {
        "absent": None,
        "crashes": "measured on PAPER",
        "exits": "measured on PAPER",
        "full": "measured on CPU",
        "host": "measured on CPU",
        "nameless": None,
    }


@pytest.mark.parametrize("name", ["ascend", "cuda", "torch"])
def test_our_own_say_how_far_their_support_goes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the driver's module is missing the word is that of the documents: none of them was measured."""
    for module in ("acl", "cuda.core", "torch"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["backends", name, "--format", "json"]) == 1
    (entry,) = json.loads(capsys.readouterr().out)
    assert not entry["works"]
    fake = "tested against a fake"
    assert entry["support"] == {"torch": "not run", "cuda": f"{fake}; on a GPU not run", "ascend": fake}[name]


@pytest.mark.usefixtures("entries")
def test_asking_for_a_backend_by_name_tells_by_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """0 if all that were named work, 1 if one does not; a wrong size or name is 2."""
    assert main(["backends", "host", "--no-measure"]) == 0
    assert main(["backends", "host", "absent", "--no-measure"]) == 1
    assert main(["backends", "nothing", "--no-measure"]) == 1
    out, err = capsys.readouterr()
    assert "no backend works here" in out
    assert "nothing: no backend 'nothing'; installed: absent, crashes, exits, full, host, nameless" in out
    assert err == ""
    assert main(["backends", "--nbytes", "0"]) == 2
    assert main(["backends", "ho\nst"]) == 2
    assert main(["backends", "--nbytes", "x"]) == 2
    err = capsys.readouterr().err
    assert "'x' is not a whole number of bytes" in err
    assert len(err.splitlines()) == 3


class Odd:
    """What nobody expects in a `DeviceInfo`."""


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("device", Odd(), "its DeviceInfo.device is Odd, not text"),
        ("support", None, "its DeviceInfo.support is NoneType, not text"),
        ("driver", 3, "its DeviceInfo.driver is int, not text"),
        ("memory_nbytes", "much", "its DeviceInfo.memory_nbytes is str, not an int"),
        ("alignment_nbytes", Odd(), "its DeviceInfo.alignment_nbytes is Odd, not an int"),
        (None, Odd(), "its info is Odd, not a DeviceInfo"),
    ],
)
def test_a_device_info_of_wrong_types_breaks_no_other(
    form: str,
    field: str | None,
    value: Any,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is one line that names the field, in the table and in JSON; other backends are shown."""

    class OddBackend(HostBackend):
        def __init__(self) -> None:
            super().__init__()
            self.info = value if field is None else dataclasses.replace(self.info, **{field: value})

    openers = {"odd": lambda target: OddBackend(), "fine": lambda target: HostBackend()}
    points = [EntryPoint(name, "a:b", _registry.GROUP) for name in openers]
    monkeypatch.setattr(EntryPoint, "load", lambda point: openers[point.name])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert main(["backends", "--format", form, "--nbytes", "4096"]) == 0
    out = capsys.readouterr().out
    if form == "json":
        found = {entry["backend"]: entry for entry in json.loads(out)}
        assert [found[name]["works"] for name in ("fine", "odd")] == [True, False]
        assert found["odd"]["why_not"] == said
    else:
        assert f"odd ({SUPPORT}): {said}" in out.splitlines()
        assert out.splitlines()[1].startswith("fine ")


def test_what_a_driver_prints_is_no_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes to standard error, so that the JSON stays JSON."""

    def loud(target: str | None = None) -> HostBackend:
        print("a driver says hello")
        return HostBackend()

    monkeypatch.setattr(EntryPoint, "load", lambda point: loud)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [EntryPoint("loud", "a:b", _registry.GROUP)])
    assert main(["backends", "--format", "json", "--no-measure"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["works"]
    assert err == "a driver says hello\n"
