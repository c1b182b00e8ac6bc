"""The client for programs without an event loop: it has one in a thread of its own."""
