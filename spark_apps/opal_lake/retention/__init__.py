"""Deletion of the files that no readable version, no savepoint and no running job needs.

`retention` is the job, and decides when a version expires. `live_files` finds the files that are
needed, `garbage` lists all other files, each with its reason. `log_digest` saves a retention from
reading the whole log again. `missing_file` finds out whether a file was deleted or lost.
"""
