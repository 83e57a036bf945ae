"""LakeChime over HTTP: how questions, answers and errors travel, and the store that asks a service."""
