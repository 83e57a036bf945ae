"""Tasks on tables; each submits one packaged Spark app."""
