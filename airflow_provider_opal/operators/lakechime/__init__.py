"""Operators around LakeChime: the relay of its events to Airflow's assets, and the end of a flow that consumes them."""
