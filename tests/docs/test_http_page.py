"""docs/http.md and the code say the same: routes and error codes."""

import re

import msgspec

from goqueue.api.errors import status_of
from goqueue.api.handlers import topics
from goqueue.api.operations import OPERATIONS
from goqueue.model import errors
from goqueue.model.errors import GoQueueError
from goqueue.model.topic import TopicSettings
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


def test_every_route_is_on_the_page_in_the_order_of_the_table() -> None:
    rows = re.findall(r"^\| ([A-Z]+) \| (`/.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    expected = [
        (one.method, ", ".join(f"`{path}`" for path in one.paths), one.summary) for one in OPERATIONS if one.paths
    ]
    assert rows == expected


def test_every_error_code_is_on_the_page_with_its_status() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \| (yes|no) \|$", PAGE, re.MULTILINE)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GoQueueError)]
    expected = {(str(status_of(kind.__new__(kind))), kind.code, "yes" if kind.retriable else "no") for kind in kinds}
    assert sorted(rows) == sorted(expected)
    assert rows == sorted(rows)


def test_every_setting_of_delivery_is_on_the_page_with_its_default() -> None:
    section = PAGE.partition("\n### Delivery settings\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| .* \|$", section, re.MULTILINE)
    config = msgspec.to_builtins(topics._config(TopicSettings()))
    fields = list(config)
    names = fields[fields.index("visibility_timeout") : fields.index("replication_factor")]
    assert rows == [(name, msgspec.json.encode(config[name]).decode()) for name in names]
