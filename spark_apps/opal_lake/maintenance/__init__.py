"""Moves rows, segment logs and key-store runs into new files, without a change of content.

`compaction_plan` chooses the files of each bin, `rewrite_task` rewrites a bin, and `rewrite_job` commits the new files instead of the old,
without those bins of which another rewrite has taken a file meanwhile.
`clock_repair` corrects commit times, which changes no row either.
"""
