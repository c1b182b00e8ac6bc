"""A page for a person to look at: figures, tables and plots in one HTML file, which can be sent around as it is."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from goqueue.spark.pipelines.frame import Table

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 60rem; margin: 2.5rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.what { color: #5b6b7b; margin-top: 0 }
dl { display: grid; grid-template-columns: max-content auto; gap: .15rem 1.5rem } dt { color: #5b6b7b } dd { margin: 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { text-align: left; color: #5b6b7b; font-weight: 600 }
th, td { padding: .25rem 1.2rem .25rem 0; border-bottom: 1px solid #e3e8ee } td.n, th.n { text-align: right }
img { max-width: 100% } .bad { color: #b3261e }
"""


def page(
    title: str,
    what: str,
    figures: Mapping[str, object],
    tables: Sequence[Table] = (),
    plots: Mapping[str, bytes] = {},
    problems: Sequence[str] = (),
) -> str:
    """`plots` are PNG images, by what they show."""
    parts = [f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>']
    parts += [f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p class=what>{escape(what)}</p>"]
    parts += [f"<p class=bad>{escape(problem)}</p>" for problem in problems]
    rows = "".join(f"<dt>{escape(name)}<dd>{escape(_shown(value))}" for name, value in figures.items())
    parts.append(f"<dl>{rows}</dl>")
    for shows, image in plots.items():
        data = base64.b64encode(image).decode()
        parts.append(f'<h2>{escape(shows)}</h2><img alt="{escape(shows)}" src="data:image/png;base64,{data}">')
    parts += [_table(table) for table in tables]
    return "\n".join(parts) + "\n"


def _table(table: Table) -> str:
    numeric = [
        bool(table.rows) and all(isinstance(row[at], int | float) for row in table.rows)
        for at in range(len(table.columns))
    ]
    kinds = [" class=n" if each else "" for each in numeric]
    head = "".join(f"<th{kind}>{escape(name)}" for name, kind in zip(table.columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(_shown(cell))}" for cell, kind in zip(row, kinds, strict=True))
        for row in table.rows
    )
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}{body}</table>"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def png(figure: Any) -> bytes:
    """Of a figure of matplotlib's."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    return data.getvalue()
