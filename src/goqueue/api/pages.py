"""Pages a person looks at in a browser. They come whole from here and load nothing from elsewhere."""

from functools import cache
from importlib import resources


@cache
def docs() -> bytes:
    """The API reference: draws what /openapi.json says."""
    return (resources.files("goqueue.api") / "docs.html").read_bytes()
