"""What tests of a table need: stores that fail and stall on purpose."""
