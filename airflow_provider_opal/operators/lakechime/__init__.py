"""Operators around LakeChime.

They turn its events into events of Airflow's assets, and acknowledge consumed events.
"""
