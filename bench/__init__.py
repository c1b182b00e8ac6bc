"""Speed, measured: `python -m bench`. Nothing here is a test; figures carry the command that made them."""
