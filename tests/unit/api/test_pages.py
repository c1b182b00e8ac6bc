"""The page at /docs: it comes whole, asks nobody but the broker, and makes no markup of what it is told."""

import re
from typing import Any

import pytest

from goqueue.api import openapi, pages

PAGE = pages.docs().decode("utf-8")
SCRIPT = PAGE.partition("<script>")[2].partition("</script>")[0]


def test_the_page_loads_nothing_from_elsewhere() -> None:
    assert not re.findall(r"(?i)\b(?:https?|wss?|ftp):|[\"'(=]\s*//", PAGE)
    assert re.findall(r"(?i)\b(?:src|href|action|srcset|poster|data)\s*=\s*[\"']([^\"']*)", PAGE) == ["data:,"]
    assert not re.findall(r"(?i)@import|\bimport\b|<(?:iframe|object|embed|base|img|video|audio)\b", PAGE)
    assert "url(" not in PAGE


def test_a_browser_is_told_to_let_it_ask_only_where_it_came_from() -> None:
    (policy,) = re.findall(r"Content-Security-Policy\"\s+content=\"([^\"]*)\"", PAGE)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert {name for name in rules if "self" not in rules[name] and "none" not in rules[name]} == {
        "style-src", "script-src", "img-src",
    }  # fmt: skip


def test_it_reads_the_document_that_lies_beside_it() -> None:
    """Beside /docs that is /openapi.json, beside /v1/docs it is /v1/openapi.json."""
    assert re.findall(r"fetch\((.*?)[,)]", SCRIPT) == ["url", '"./openapi.json"']
    assert 'new URL("." + target' in SCRIPT


@pytest.mark.parametrize(
    "way", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
)
def test_nothing_it_is_told_becomes_markup_or_code(way: str) -> None:
    assert way not in SCRIPT
    assert not re.findall(r"(?i)\son\w+\s*=\s*[\"']", PAGE), "no handler is written as an attribute"


def test_it_fits_a_phone_and_both_kinds_of_light() -> None:
    assert '<meta name="viewport" content="width=device-width' in PAGE
    assert "prefers-color-scheme: dark" in PAGE
    assert "@media (max-width:" in PAGE


def test_it_draws_every_kind_of_limit_that_our_schemas_have() -> None:
    named_elsewhere = {"title", "required", "properties", "type", "examples", "items", "additionalProperties"}
    for word in words_of(openapi.build()["components"]["schemas"].values()) - named_elsewhere:
        assert re.search(rf"\.{re.escape(word)}\b", SCRIPT), f"a schema says {word} and the page does not"


def words_of(schemas: Any) -> set[str]:
    """The keywords that occur in schemas."""
    found: set[str] = set()
    for schema in schemas:
        if isinstance(schema, dict):
            found |= schema.keys()
            inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("prefixItems", ())]
            found |= words_of([*inner, schema.get("items"), schema.get("additionalProperties")])
    return found
