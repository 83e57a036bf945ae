"""YAML text to plain values that know their line and column, and what is wrong with them."""
