"""The doors: one table of operations, and the protocols that lead to it."""
