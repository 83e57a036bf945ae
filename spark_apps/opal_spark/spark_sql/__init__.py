"""SQL statements on Opal tables: `opal_lake.sql` reads their text, and this package runs them."""
