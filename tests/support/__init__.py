"""What tests of several kinds share: disks that fail, records to write, ways to read a log back."""
