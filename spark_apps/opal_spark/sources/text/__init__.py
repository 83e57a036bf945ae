"""CSV and JSON: text that becomes a column's type exactly or not at all."""
