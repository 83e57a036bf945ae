"""What goes, and what must stay: files that no readable version, savepoint or running job needs are deleted, nothing else.

`live_files` finds what is needed, `garbage` deletes the rest, `log_digest` keeps a run from reading the whole log again, `expiry` tells
what retention took from what was lost.
"""
