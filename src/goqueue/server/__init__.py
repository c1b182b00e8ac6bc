"""The process: a broker with its doors, from the first log line to the last fsync."""
