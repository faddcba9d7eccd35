"""The structure of the package, held by tests: what imports what, and what is public."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import async_orch
import async_orch.analysis

PACKAGE = Path(async_orch.__file__).parent
BACKENDS = PACKAGE.parent / "backends" / "async_orch_backends"

PUBLIC = [
    "async_orch",
    "async_orch.abc",
    "async_orch.analysis",
    "async_orch.exceptions",
    "async_orch.graph",
    "async_orch.logs",
    "async_orch.metrics",
    "async_orch.testing",
]
LAYERS = [
    {"exceptions"},
    {"abc"},
    {
        "_delta",
        "_nbytes",
        "_layout",
        "_events",
        "_escape",
        "_process",
        "_process_boot",
        "_registry",
        "_workers",
        "_waker",
        "_fences",
        "_ring",
        "_finish",
        "_allocation",
        "logs",
    },
    {"_shared_memory", "_process_errors"},
    {"_device", "_step_totals"},
    {"_prometheus", "_opentelemetry"},
    {"metrics"},
    {"_config", "_slot", "_step", "_slot_ring", "_staging"},
    {"_program", "_timings", "_handle", "_clocks", "_collect", "_annotate", "_witness"},
    {"_engine_program", "_stage", "_record", "_watchdog", "_barrier", "_admission", "_settling", "_memory_plan"},
    {"_process_wire", "_build_job"},
    {"_process_main"},
    {"_process_worker"},
    {"_process_start", "_process_programs"},
    {"_process_group"},
    {"_process_pool"},
    {"_quarantine", "_records"},
    {"_programs", "_targets"},
    {"_build_workers"},
    {"_build", "_uploads", "_transfer", "_launch", "_retire", "_express"},
    {"_pipeline"},
    {"_opening"},
    {"_statistics", "_submission", "_reopening", "_map"},
    {"_submitting"},
    {"_orchestrator"},
    {"__init__"},
]


def imports_of(path: Path) -> set[str]:
    """Modules of async_orch that a file imports at run time (those for type checkers only are left out)."""
    tree = ast.parse(path.read_text("utf-8"))
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "async_orch":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("async_orch.")}
    return found


def test_the_engine_imports_in_one_direction() -> None:
    """A module imports only modules of lower layers, or of its own without a circle."""
    level = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for name, own in level.items():
        for other in imports_of(PACKAGE / f"{name}.py"):
            assert level[other] <= own, f"{name} imports {other}, which is above it"


def test_the_core_never_imports_a_backend() -> None:
    """Backends are looked up by name, so that third parties take the same path."""
    for path in PACKAGE.rglob("*.py"):
        assert "async_orch_backends" not in path.read_text("utf-8"), path


def test_a_backend_imports_the_seam_only() -> None:
    """Backends know async_orch.abc and async_orch.exceptions."""
    for path in BACKENDS.rglob("*.py"):
        assert imports_of(path) <= {"abc", "exceptions"}, path


def test_the_analysis_knows_nothing_of_the_engine() -> None:
    """It reads logs of other machines: the log schema is all it shares with the engine."""
    for path in (PACKAGE / "analysis").rglob("*.py"):
        assert imports_of(path) <= {"analysis", "logs", "exceptions"}, path


def test_the_test_tools_use_public_names_only() -> None:
    """What async_orch.testing does with the engine, a user could do."""
    for path in (PACKAGE / "testing").rglob("*.py"):
        assert not {name for name in imports_of(path) if name.startswith("_")}, path


def test_the_test_tools_import_without_pytest() -> None:
    """A program may use them where pytest is not installed."""
    code = "import sys; sys.modules['pytest'] = None; import async_orch.testing"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_modules_say_what_is_public(name: str) -> None:
    """Each has __all__, all of its names exist, and none is private."""
    module = importlib.import_module(name)
    assert module.__all__
    for public in module.__all__:
        assert hasattr(module, public)
        assert not public.startswith("_")


def test_every_public_name_of_the_package_has_a_docstring() -> None:
    """What a user can import, a user can look up."""
    for name in async_orch.__all__:
        assert getattr(async_orch, name).__doc__, name


@pytest.mark.parametrize("package", [async_orch, async_orch.analysis])
def test_lazy_names_are_those_that_type_checkers_see(package: ModuleType) -> None:
    """Each public name is loaded at run time from the module that type checkers take it from."""
    tree = ast.parse(Path(str(package.__file__)).read_text("utf-8"))
    declared = {
        alias.name: f"{node.module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package.__name__}.")
        for alias in node.names
    }
    assert {name: f"{package.__name__}.{home}" for name, home in package._HOME.items()} == declared
    assert sorted(declared) == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    assert not hasattr(package, "Orchestrater")


@pytest.mark.parametrize(
    "code",
    [
        "import async_orch",
        "import async_orch.analysis",
        "import async_orch.cli as cli; cli._parser(None).format_help()",
    ],
)
def test_a_bare_import_loads_no_engine(code: str) -> None:
    """Imports of the package and of its analysis, and ``async-orch --help``, wait for neither numpy nor the engine."""
    slow = "{'numpy', 'anyio', 'structlog', 'msgspec', 'async_orch._orchestrator'}"
    subprocess.run([sys.executable, "-c", f"{code}; import sys; assert not {slow} & set(sys.modules)"], check=True)


def test_public_modules_are_attributes_of_the_package() -> None:
    """``import async_orch`` is enough for ``async_orch.logs`` and the other public modules."""
    names = [name.partition(".")[2] for name in PUBLIC if "." in name]
    code = f"import async_orch; [getattr(async_orch, name).__all__ for name in {names}]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_prints_nothing() -> None:
    """Import is silent, on standard output and standard error, with all warnings on."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "always",
            "-c",
            "from async_orch import *; import async_orch.graph, async_orch.analysis, async_orch.metrics",
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_examples_use_public_names_only() -> None:
    """An example that needs a private name shows a hole in the API."""
    examples = PACKAGE.parent / "examples"
    for path in examples.rglob("*.py"):
        assert not {name for name in imports_of(path) if name.startswith("_")}, path
