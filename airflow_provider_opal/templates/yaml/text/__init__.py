"""YAML text to plain values with their positions, and the mistakes in it."""
