"""Opening backends by name: every name that cannot be opened is one line, before anything is opened."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
from async_orch_backends.host import HostBackend

from async_orch import Orchestrator, _registry, available_backends, open_backend
from async_orch.abc import Backend
from async_orch.exceptions import BackendUnavailable, ConfigurationError
from tests.programs import Square

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes the given entry points, as (name, value, package, what loading gives), the only installed ones."""

    class Point:
        def __init__(self, name: str, value: str, package: str, opener: Any) -> None:
            self.name, self.value, self.dist = name, value, SimpleNamespace(name=package)
            self._opener = opener

        def load(self) -> Any:
            if isinstance(self._opener, BaseException):
                raise self._opener
            return self._opener

    def install(*points: tuple[str, str, str, Any]) -> None:
        found = [Point(*point) for point in points]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)

    return install


class Silent(Exception):
    """An exception that fails to say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def open_host(target: str | None = None, **options: Any) -> Backend:
    """An opener as a package has it."""
    return HostBackend()


def refused(name: Any, message: str) -> None:
    """Opening ``name`` is refused with a single line that matches."""
    with pytest.raises(BackendUnavailable, match=message) as caught:
        open_backend(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", None, 3, b"host"])
def test_a_name_is_text(name: Any) -> None:
    """The error repeats what was given."""
    refused(name, r"named by a non-empty string such as 'host', got")


def test_an_unknown_name_lists_the_installed_ones(install: Install) -> None:
    """So does a name with a space or a colon too many, and one without a kind."""
    install(("mine", "a:b", "a-package", open_host), ("host", "c:d", "async-orch", open_host))
    for name in ("gpu", " host", ":0"):
        refused(name, r"installed: host, mine")


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    """Neither is chosen; other names still open, and the list shows the name once."""
    install(
        ("mine", "one.backend:open", "package-one", open_host),
        ("mine", "two.backend:open", "package-two", open_host),
        ("host", "c:d", "async-orch", open_host),
    )
    refused(
        "mine:0",
        r"two packages provide a backend 'mine': one\.backend:open \(package-one\) and two\.backend:open "
        r"\(package-two\); uninstall one",
    )
    assert available_backends() == ["host", "mine"]
    open_backend("host").close()


def test_a_broken_entry_point_breaks_no_other(install: Install) -> None:
    """Whatever importing or opening it raises is one line with the backend's name, and the cause is kept."""
    install(
        ("absent", "gone:open", "p", ModuleNotFoundError("No module named 'gone'")),
        ("crashes", "x:open", "p", SyntaxError("invalid syntax\nin two lines")),
        ("raises", "y:open", "p", lambda target: dict[str, int]()["key"]),
        ("shouts", "z:open", "p", lambda target: (_ for _ in ()).throw(RuntimeError("first\nsecond"))),
        ("ours", "v:open", "p", lambda target: (_ for _ in ()).throw(BackendUnavailable("no device:\n  plug it in"))),
        ("signature", "w:open", "p", lambda: None),
        ("host", "c:d", "async-orch", open_host),
    )
    refused("absent", "backend 'absent' cannot be imported: No module named 'gone'")
    refused("crashes", "backend 'crashes' cannot be imported: invalid syntax in two lines")
    refused("raises", "backend 'raises' could not be opened: 'key'")
    refused("shouts", "backend 'shouts' could not be opened: first second")
    refused("ours", "^no device: plug it in$")
    refused("signature", "backend 'signature' could not be opened: .*positional argument")
    with pytest.raises(BackendUnavailable) as caught:
        open_backend("absent")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    open_backend("host").close()


@pytest.mark.parametrize("value", ["", ":", "a_module", "a module:open", "a:b:c"])
def test_an_entry_point_that_names_no_function_says_so(install: Install, value: str) -> None:
    """With its text and its package, in place of what `importlib` makes of it."""
    install(("mine", value, "A.package", open_host))
    refused("mine", re.escape(f"backend 'mine': its entry point {value!r} (of a-package) is not MODULE:FUNCTION"))


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError("gone"), GeneratorExit(), Silent("x")])
def test_foreign_code_that_exits_ends_nothing_of_ours(install: Install, raised: BaseException) -> None:
    """An import or an opener that raises what is no `Exception`, or one that cannot be shown, is unavailable."""

    def leave(target: str | None = None) -> Backend:
        raise raised

    install(("early", "a:b", "p", raised), ("late", "c:d", "p", leave))
    refused("early", f"backend 'early' cannot be imported: .*{type(raised).__name__}")
    refused("late", f"backend 'late' could not be opened: .*{type(raised).__name__}")


def test_the_users_interrupt_passes(install: Install) -> None:
    """Ctrl-C while a driver loads ends the program, as anywhere else."""
    install(("slow", "a:b", "p", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        open_backend("slow")


@pytest.mark.parametrize("name", ["mine:", "host:", "sim:", "opencl:"])
def test_a_colon_with_nothing_after_it_is_malformed(name: str, install: Install) -> None:
    """It is refused before the backend is imported, rather than read as the default."""
    install(*((kind, "a:b", "p", open_host) for kind in ("mine", "host", "sim", "opencl")))
    refused(name, f"backend '{name}' names nothing after the colon; use '{name[:-1]}' for its default")


def test_the_same_entry_from_one_package_is_one_and_from_two_is_a_clash(install: Install) -> None:
    """An installation that shows up twice is one backend; two packages with one target overwrite each other."""
    install(("mine", "one:open", "A-package", open_host), ("mine", "one:open", "a_package", open_host))
    open_backend("mine").close()
    install(("mine", "one:open", "package-one", open_host), ("mine", "one:open", "package-two", open_host))
    refused("mine", r"one:open \(package-one\) and one:open \(package-two\); uninstall one")


def test_an_opener_that_gives_no_backend_is_refused(install: Install) -> None:
    """A module's opener that forgets its return is named, rather than failing at the first use."""
    install(("mine", "a:b", "a-package", lambda target: None))
    refused("mine", r"backend 'mine': its opener a:b gave NoneType, not a Backend")


def test_our_own_errors_pass_as_they_are(install: Install) -> None:
    """An opener that says what is wrong with an option is not wrapped."""

    def picky(target: str | None, **options: Any) -> Backend:
        raise ConfigurationError("backend 'mine' takes no option x")

    install(("mine", "a:b", "a-package", picky))
    with pytest.raises(ConfigurationError, match="takes no option x"):
        open_backend("mine", x=1)


async def test_no_step_starts_on_a_name_that_is_wrong() -> None:
    """The orchestrator gives the same line when it is entered."""
    with pytest.raises(BackendUnavailable, match=r"no backend 'gpu'; installed: .*host"):
        async with Orchestrator(Square(), "gpu"):
            pass


def test_an_entry_point_listed_twice_by_one_installation_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable installation may show up twice on the path: that is no clash."""
    point = EntryPoint("host", "async_orch_backends.host:open_backend", _registry.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point, point])
    open_backend("host").close()


def test_the_entry_points_are_read_anew_each_time() -> None:
    """There is no state to go stale: what is installed is asked of the system."""
    assert set(available_backends()) == {point.name for point in importlib.metadata.entry_points(group=_registry.GROUP)}
