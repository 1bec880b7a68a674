"""core is pure: it imports only itself and a short list, and nothing of it does input or output."""

import ast
from pathlib import Path

import pytest

CORE = Path(__file__).parent.parent / "monitor" / "core"
ALLOWED = {"numpy", "dataclasses", "math", "json", "enum", "typing", "collections", "functools", "itertools", "statistics"}
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda p: str(p.relative_to(CORE)))
def test_core_is_pure(path):
    """Each import of core is allowed, nothing reads a clock, and nothing opens or prints."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            assert node.level == 0
        for name in names:
            assert name == "scipy.special" or name.startswith("monitor.core") or name.split(".")[0] in ALLOWED, (path, name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, (path, node.lineno)
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("now", "today", "utcnow"), (path, node.lineno)
