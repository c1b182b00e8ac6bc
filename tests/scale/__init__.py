"""Deliveries at scale: millions of delayed messages, bursts, long lanes. `python -m tests.scale`, or `make scale`."""
