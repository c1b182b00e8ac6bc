"""The wire protocol as bytes: frames, the two block operations, operation codes, errors."""
