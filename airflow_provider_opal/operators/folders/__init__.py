"""Operators on folders of files, which need no table."""
