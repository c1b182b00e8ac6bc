"""The wire door: framed requests over TCP, many in flight, record blocks carried as they are."""
