"""Operations that move rows, segment logs and key-store runs into new files.

They change no content. `compaction_plan` puts files into bins, `rewrite_task` rewrites a bin, and
`rewrite_job` commits the new files instead of the old ones. It leaves out a bin if another rewrite
has replaced one of its files meanwhile. `clock_repair` corrects commit times and changes no row.
"""
