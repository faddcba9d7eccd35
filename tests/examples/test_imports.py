"""The examples use async_orch as its users do."""

import ast
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

KERNEL_FORMS = {"async_orch_backends.opencl.NDRange"}
"""What a backend's documentation tells a program to launch."""


def test_examples_import_public_modules_only() -> None:
    """No example imports a private module of async_orch, or of a backend's package more than a form of kernels."""
    imported = set()
    for path in EXAMPLES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    ours = {name for name in imported if name.startswith("async_orch")}
    assert "async_orch.graph.execute" in ours
    assert not {name for name in ours - KERNEL_FORMS if "._" in name or name.startswith("async_orch_backends")}
