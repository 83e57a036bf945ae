"""Views of a table: which files a read needs and which of their rows it shows, by version, time and partition key; and change feeds."""
