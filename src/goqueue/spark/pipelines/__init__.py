"""Pipelines that ship: a frame that runs them, and a file for each."""
