"""A story of producers and consumers of data-change events that are killed at any moment, on a real database."""
