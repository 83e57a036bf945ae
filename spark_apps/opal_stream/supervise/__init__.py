"""Several processes of one stream: who reads what by load, started, watched, started again, and never left alone."""
