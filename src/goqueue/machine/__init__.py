"""The one shape of stateful decisions, and the host that runs machines over a log."""
