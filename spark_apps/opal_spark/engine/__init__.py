"""Spark itself: sessions, Java, scans, columns and hashes, tasks and their results, failures and progress. The other rooms stand on it."""
