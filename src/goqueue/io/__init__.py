"""Ports to the outside world, and the real ones behind them."""
