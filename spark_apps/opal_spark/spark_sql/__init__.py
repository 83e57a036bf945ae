"""SQL statements on Opal tables: the text is cut at tokens and never written again."""
