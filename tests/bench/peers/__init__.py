"""Opal tables next to other table formats, on the same rows, the same machine and in turns."""
