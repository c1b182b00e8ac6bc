"""Small mechanisms with no knowledge of messages: clocks, queues, timers, sets."""
