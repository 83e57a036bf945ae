"""Data-change events on Airflow's side: their assets, how they reach tasks, who waits for them, and how tables register theirs."""
