"""What each group was delivered of a partition, what it has settled, and what comes next."""
