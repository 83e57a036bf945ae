"""Savepoints, business snapshots, and the restore of an older version.

`savepoint` gives versions names and releases them. `business_snapshot` finishes business snapshots,
whose last versions become savepoints. `restore` makes an older version the newest again;
`restored_files` first checks that its files still exist.
"""
