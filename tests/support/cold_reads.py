"""`goqueue` on a machine whose page cache is always empty: what is not in the last segment is read aside, like from a
disk. So a test decides which reads are cold, and no other process on the machine does.
"""

import sys
from typing import Final

_PROGRAM: Final = (
    "from goqueue.io.disk import LocalFile; LocalFile.is_cached = lambda *_: False; "
    "from goqueue.cli.main import main; main()"
)

PROGRAM: Final = (sys.executable, "-c", _PROGRAM)
"""What to run instead of `goqueue`."""
