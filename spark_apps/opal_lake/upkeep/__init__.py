"""Keeping a table fast: compaction, Z-order, the key store made anew, and what is due of these (`maintenance`)."""
