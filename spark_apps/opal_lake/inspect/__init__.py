"""Looking at a table without changing it: what it holds (`describe`), and whether it is what FORMAT.md says (`check`)."""
