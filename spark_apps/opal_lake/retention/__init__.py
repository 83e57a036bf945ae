"""Deletion of the files that no readable version, no savepoint and no running job needs.

`retention` is the job, and decides when a version expires. `live_files` finds the files that are
needed, `garbage` lists the others, each with its reason. `log_digest` saves a run from reading the
whole log again. `missing_file` finds out whether retention deleted a file, or it was lost.
"""
