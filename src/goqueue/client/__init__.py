"""A client for the wire protocol. Private for now: its names and behaviour may change with any version."""
