"""LakeChime over HTTP: its requests, answers and errors, and the store behind a service."""
