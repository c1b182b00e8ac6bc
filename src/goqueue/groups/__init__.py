"""Consumer groups: who is in them, and which partitions each member owns."""
