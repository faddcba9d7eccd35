"""Profiles of simulated devices: what is read, and how bad ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from async_orch_backends.sim_profile import SimProfile, load_profile

from async_orch.exceptions import BackendUnavailable, ConfigurationError


def test_costs_are_fixed_plus_per_byte() -> None:
    """A rate adds nbytes / rate to the fixed cost, null adds nothing."""
    profile = SimProfile(name="x", copy_fixed_ns=100, copy_bytes_per_s=2e9, alloc_fixed_ns=7)
    assert profile.copy_ns(1000) == 600
    assert profile.copy_ns(0) == 100
    assert profile.alloc_ns(10**12) == 7
    assert not profile.streams_are_free


def test_a_profile_file_is_read(tmp_path: Path) -> None:
    """Figures may be plain numbers or objects with a claim; the name defaults to the file's."""
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps(
            {
                "kernel_ns": 5,
                "copy_bytes_per_s": {"value": 1e9, "claim": "measured", "source": "report"},
                "launch_ns": {"value": 3, "claim": "assumed", "note": "a guess"},
                "jitter": 0.5,
                "seed": 4,
                "memory_nbytes": 1000,
                "alloc_bytes_per_s": None,
            }
        )
    )
    assert load_profile(str(path)) == SimProfile(
        name="mine",
        kernel_ns=5,
        copy_bytes_per_s=1e9,
        launch_ns=3,
        jitter=0.5,
        seed=4,
        memory_nbytes=1000,
        assumed=("launch_ns",),
    )


@pytest.mark.parametrize("name", ["instant", "a5-report", "adversary"])
def test_shipped_profiles_are_named_like_their_files(name: str) -> None:
    """Every shipped profile loads, and its name is the one it is opened by."""
    assert load_profile(name).name == name


def test_the_default_profile_is_instant() -> None:
    """Without a name nothing takes time."""
    assert load_profile(None).streams_are_free
    assert load_profile("").name == "instant"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must be a JSON object, not list"),
        ('{"kernel": 1}', "unknown key 'kernel'"),
        ('{"kernel_ns": -1}', "kernel_ns must be from 0 to"),
        ('{"kernel_ns": 1e16}', "kernel_ns must be from 0 to"),
        ('{"kernel_ns": null}', "kernel_ns must be a finite number"),
        ('{"kernel_ns": true}', "kernel_ns must be a finite number"),
        ('{"copy_fixed_ns": "3"}', "copy_fixed_ns must be a finite number, got '3'"),
        ('{"copy_bytes_per_s": 0}', "copy_bytes_per_s must be from 1 to"),
        ('{"copy_bytes_per_s": NaN}', "copy_bytes_per_s must be a finite number"),
        ('{"jitter": 1.5}', "jitter must be from 0 to 1"),
        ('{"seed": 1.5}', "seed must be a whole number"),
        ('{"adversary": 1}', "adversary must be true or false, got 1"),
        ('{"memory_nbytes": -1}', "memory_nbytes must be from 0"),
        ('{"name": ""}', "name must be a non-empty string"),
        ('{"launch_ns": {"note": "x"}}', "launch_ns has no 'value'"),
        ('{"launch_ns": {"value": 1, "unit": "ns"}}', "unknown part 'unit'"),
        ('{"launch_ns": {"value": 1, "claim": "sure"}}', "claim of launch_ns must be one of"),
        ('{"launch_ns": {"value": 1, "claim": "measured"}}', "source of launch_ns, which is measured,"),
        ('{"launch_ns": {"value": 1, "claim": "assumed"}}', "note of launch_ns, which is assumed,"),
    ],
)
def test_a_bad_profile_is_refused_on_one_line(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file and the key at fault."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_profile(str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_profile_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are a configuration error."""
    path = tmp_path / "binary.json"
    path.write_bytes(b'{"name": "\xff"}')
    with pytest.raises(ConfigurationError, match="is not JSON"):
        load_profile(str(path))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("a6", "no profile 'a6' for backend 'sim'; shipped are a2a3-published, a5-report, adversary, instant"),
        ("nowhere/x.json", "cannot read profile nowhere/x.json: No such file or directory"),
    ],
)
def test_an_unknown_profile_says_what_there_is(target: str, message: str) -> None:
    """The error lists the shipped profiles, or says why the file cannot be read."""
    with pytest.raises(BackendUnavailable) as caught:
        load_profile(target)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("figures", "nbytes"),
    [
        ({}, 0),
        ({"copy_bytes_per_s": 1e9}, 0),
        ({"copy_fixed_ns": 10_000, "copy_bytes_per_s": 10e9}, 100_000),
        ({"copy_fixed_ns": 1}, 2**60),
        ({"copy_fixed_ns": 10**15, "copy_bytes_per_s": 1e18}, 2**60),
    ],
)
def test_a_profile_says_what_one_copy_more_is_worth(figures: dict[str, Any], nbytes: int) -> None:
    """Its fixed cost in bytes: nothing where there is none, more than any image where bytes cost nothing."""
    assert SimProfile(name="made up", **figures).copy_overhead_nbytes == nbytes
