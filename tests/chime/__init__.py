"""A story of producers and consumers that are killed at any moment, on a database."""
