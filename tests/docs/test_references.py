"""What the documentation names is there: files, tests, rules, headings; and every rule that refuses is documented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PACKAGE = ROOT / "airflow_provider_segments"
REFUSALS = (
    "RefusedError",
    "refusal",
    "LockLostError",
    "LockDeniedError",
    "LockRevokedError",
    "_refused",
    "_start",
    "_revert",
)
"""How the names of what makes an error with a rule end."""


def without_code(page: Path) -> str:
    """The page less its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", without_code(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        to = page if not path else (page.parent / path).resolve()
        assert to.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(to), f"{page.name} links to {target}, and {to.name} has no such heading"


def named_in(page: Path, pattern: str) -> list[str]:
    """What of inline code on the page has this form."""
    return [text for text in re.findall(r"`([^`\n]+)`", without_code(page)) if re.fullmatch(pattern, text)]


REMOVED = "## What was removed, and why"
"""What comes after this heading of docs/architecture.md names what is not there, on purpose."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    removed = page.read_text().partition(REMOVED)[2].partition("\n## ")[0]
    everything = [path.relative_to(ROOT).as_posix() for folder in ("airflow_provider_segments", "tests", "spark_apps",
                  "dags", "benchmarks", "scripts", "docs", "demo") for path in (ROOT / folder).rglob("*")]  # fmt: skip
    for name in named_in(page, r"[\w./]+/[\w./]*|[\w/]+\.py"):
        if f"`{name}`" in removed or not re.match(
            r"(core|tests|docs|dags|spark_apps|benchmarks|scripts|\w+/\w+\.py)", name
        ):
            continue
        wanted = name.rstrip("/")
        assert any(path == wanted or path.endswith(f"/{wanted}") for path in everything), f"{page.name}: {name}"


def test_every_test_that_is_named_is_there() -> None:
    functions = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in [*re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE), path.stem]
    }
    for page in PAGES:
        for name in named_in(page, r"test_\w+"):
            assert name in functions, f"{page.name} names {name}"


def rules_in_code() -> Iterator[tuple[str, str]]:
    """Every rule with which the core refuses something, and the module that does."""
    trees = {path: ast.parse(path.read_text()) for path in (PACKAGE / "core").rglob("*.py")}
    constants = {name: text for tree in trees.values() for name, text in text_constants(tree)}
    for path, tree in trees.items():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(REFUSALS):
                for argument in call.args[:4]:
                    text = constants.get(argument.id, "") if isinstance(argument, ast.Name) else ""
                    text = str(argument.value) if isinstance(argument, ast.Constant) else text
                    if re.fullmatch(r"[a-z]+(-[a-z]+)*", text):
                        yield text, path.relative_to(PACKAGE).as_posix()


def text_constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The module's constants that are text."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name) and isinstance(statement.value.value, str):
                    yield target.id, statement.value.value


def test_every_rule_that_refuses_is_documented() -> None:
    """Those of upsert tables once docs/upsert.md is there: until then nothing tells people to make one."""
    documented = {
        name
        for page in PAGES
        if page.stem not in ("CHANGELOG", "architecture")
        for name in named_in(page, r"[a-z]+(-[a-z]+)*")
    }
    rules = dict(rules_in_code())
    if not (ROOT / "docs" / "upsert.md").exists():
        rules = {rule: module for rule, module in rules.items() if "upsert" not in rule + module}
    assert len(rules) > 35
    assert not {rule: module for rule, module in rules.items() if rule not in documented}


def test_every_documented_rule_of_the_protocol_is_in_the_code() -> None:
    table = (ROOT / "docs" / "lineage.md").read_text().partition("## Rules that refuse")[2].partition("\n## ")[0]
    source = "".join(path.read_text() for path in (PACKAGE / "core").rglob("*.py"))
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    documented = {rule for cell in cells for rule in re.findall(r"`([a-z-]+)`", cell)}
    assert len(documented) > 35
    assert not {rule for rule in documented if f'"{rule}"' not in source}
