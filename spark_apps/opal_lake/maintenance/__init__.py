"""Operations that move rows, segment logs and key-store runs into new files.

They change no content. `compaction_plan` chooses the files of each bin, `rewrite_task` rewrites a
bin, and `rewrite_job` commits the new files instead of the old, without those bins of which another
rewrite has replaced a file meanwhile. `clock_repair` corrects commit times, which changes no row
either.
"""
