"""What tests of a table need: a model that says what is right, random histories, stores that fail on purpose, clocks set by hand."""
