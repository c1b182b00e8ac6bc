"""The test suite; README.md says where a test goes."""
