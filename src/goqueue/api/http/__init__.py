"""The HTTP door: the table of operations, and a few pages, over HTTP/1.1."""
