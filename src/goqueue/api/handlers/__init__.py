"""What each operation does with a request that was understood: one file per kind of operation."""
