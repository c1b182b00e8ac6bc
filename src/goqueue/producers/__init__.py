"""Idempotent publishing: who produces, what of it a partition has already, and ids that are given out once."""
