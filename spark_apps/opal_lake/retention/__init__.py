"""What goes, and what must stay: files that no readable version, savepoint or running job needs are deleted, nothing else.

`retention` is the job and says when a version expires, `live_files` finds what is needed, `garbage` says what goes and why, `log_digest`
keeps a run from reading the whole log again, `missing_file` tells what retention took from what was lost.
"""
