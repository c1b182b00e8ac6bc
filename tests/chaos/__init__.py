"""Real processes, real disks, real kills."""
