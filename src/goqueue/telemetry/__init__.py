"""What the broker tells about itself: events for a log file, numbers for Prometheus."""
