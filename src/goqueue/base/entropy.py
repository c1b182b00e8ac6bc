"""The port for chance: cores that need an id are given one of these, so that a seed can stand in for it."""

from collections.abc import Callable

Entropy = Callable[[int], int]
"""Gives an unsigned number of that many bytes."""
