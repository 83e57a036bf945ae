"""Rows, events and key-store entries against each other, in bounded memory: what waits is put on a shelf by slots of the key hash."""
