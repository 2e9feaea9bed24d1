"""Write docs/api.md: every route of the page, as its application says.

python -m demo.api_page [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# The routes of the page

Made by `python -m demo.api_page` from what the application says; do not edit it. The API server serves these routes
below `/segments`, for the page ([page.md](page.md)). They may change with any release. All of them only read. Each
needs a token of Airflow (`Authorization: Bearer`, or the browser's cookie), whose user may see plugins.

| status | |
| --- | --- |
| 200 | the answer |
| 202 | the answer is still being computed, since the table is large or ZooKeeper is slow: ask again |
| 401, 403 | there is no token, or its user may not see plugins |
| 404 | there is no such connection, table or entry |
| 409 | what is asked for is refused, as a past that has been cleaned up; `detail` says why |
| 422 | a parameter cannot be |
| 500 | a record cannot be read; `detail` names it |
| 503 | ZooKeeper does not answer, or a storage is not available |

Times are epoch milliseconds, UTC.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the page that is there")
    args = parser.parse_args()
    text = render(document())
    if not args.check:
        PAGE.write_text(text)
    elif text != PAGE.read_text():
        sys.exit(f"{PAGE.name} is not what the routes say: run python -m demo.api_page and commit it")


def document() -> dict[str, Any]:
    """The OpenAPI document of the page's application."""
    from airflow_provider_segments.plugins.api import app

    return app.openapi()


def render(openapi: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    lines = [HEAD, "## Routes", ""]
    for path, methods in openapi["paths"].items():
        for method, route in methods.items():
            lines += _route(method, path, route)
    lines += ["## Answers", ""]
    for name, schema in openapi["components"]["schemas"].items():
        if name not in ("HTTPValidationError", "ValidationError"):
            lines += _schema(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _route(method: str, path: str, route: dict[str, Any]) -> Iterator[str]:
    yield from (f"### `{method.upper()} {path}`", "", _prose(route["description"]), "")
    answer = route["responses"]["200"].get("content", {}).get("application/json", {}).get("schema", {})
    if answer:
        yield from (f"Answers {_type(answer)}.", "")
    if parameters := route.get("parameters"):
        yield from ("| parameter | in | type | default | |", "| --- | --- | --- | --- | --- |")
        for one in parameters:
            default = "required" if one["required"] else f"`{json.dumps(one['schema'].get('default'))}`"
            yield (
                f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {default} | {one.get('description', '')} |"
            )
        yield ""


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "", _prose(schema.get("description", "")), "", "| field | type |", "| --- | --- |")
    for field, held in schema["properties"].items():
        yield f"| `{field}` | {_type(held)} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if isinstance(held := schema.get("additionalProperties"), dict):
        return f"map of {_type(held)}"
    return str(schema.get("type", "any"))


def _prose(text: str) -> str:
    """A docstring as Markdown, in one line."""
    plain = re.sub(r":\w+:`[~.]*([^`]+)`", r"`\1`", text).replace("``", "`")
    return " ".join(plain.split())


if __name__ == "__main__":
    main()
