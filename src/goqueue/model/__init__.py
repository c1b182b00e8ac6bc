"""The product's nouns: records, limits, settings, errors."""
