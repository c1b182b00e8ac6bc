"""GoQueue in Spark."""
