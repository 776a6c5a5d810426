"""The chart's values, schema and README."""
