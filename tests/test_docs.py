"""The documents say what the program does."""

import importlib.util
import re
from pathlib import Path

from monitor import cli
from monitor.core.reasons import REASONS
from monitor.core.rules import SHIPPED
from monitor.server import api_app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def build():
    """Return docs/build.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_series_are_documented():
    """docs/series.md is what docs/build.py writes from the contract."""
    assert (ROOT / "docs" / "series.md").read_text() == build().series()


def test_rules_are_documented():
    """docs/rules.md has the table that docs/build.py writes from the shipped rules."""
    assert f"<!-- rules -->\n{build().rules()}\n<!-- end -->" in (ROOT / "docs" / "rules.md").read_text()


def test_commands_and_rules_are_in_readme():
    """README names every command and every shipped rule, and no other command."""
    parser = cli._parser()
    commands = set(next(a for a in parser._actions if a.choices and not a.option_strings).choices)
    line = next(line for line in README.splitlines() if line.startswith("Commands: "))
    assert set(re.findall(r"`(\w+)`", line)) == commands
    assert all(f"**{name}**" in README for name in SHIPPED)


def test_routes_are_in_readme():
    """README has every route of the api, by its last word where the table goes on from the one before."""
    paths = [
        re.sub(r":int}", "}", route.path).replace("{model}", "{m}").replace("{version}", "{v}") for route in api_app(None).routes
    ]
    named = set(re.findall(r"`(/[^`?]*)`", README))
    assert [p for p in paths if p not in named and f"/{p.rpartition('/')[2]}" not in named] == []


def test_reasons_are_used():
    """Every reason of the only list is used somewhere in the program."""
    code = "\n".join(p.read_text() for p in (ROOT / "monitor").rglob("*.py") if p.name != "reasons.py")
    assert [r for r in REASONS if f'"{r}"' not in code] == []


def test_links_of_readme_exist():
    """Every local link of README leads to a file."""
    links = [x for x in re.findall(r"\]\(([^)]+)\)", README) if not x.startswith("http")]
    assert links
    assert [x for x in links if not (ROOT / x).exists()] == []
