"""The log on disk: segments, indexes, views, recovery, cleaning."""
