"""Operators around LakeChime.

They relay its events to Airflow's assets, and end a flow that consumes its events.
"""
