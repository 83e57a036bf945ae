"""A merge of files into a folder of files without a table, the master.

It chooses the files and their order, and swaps the master so that no crash leaves it halfway. It
needs no Spark. Next to the master lies its folder `<master>.mutate`:

    runs/<n>/claim.json     the increments of run n, listed once
    runs/<n>/outcome.json   the decision: a new master (decided), or the files go back (abandoned)
    runs/<n>/done.json      the result, when all steps are done
    working/<n>/, done/<n>/ the increments while they are merged, and afterwards; on S3 copies,
                            until the run is decided
    staged/<n>/             a new master before it is one; on S3 masters/<n>/, where it stays
    originals/<n>.json      on S3 the files of before the first run: retention deletes no others of
                            the master's folder
    backup-<n>/             on local files the master that run n replaced
    merged/<digest>         the name of each merged file, and those of the folders that it came from
    results/<digest>.json   the result of the run with a token
    rejected/<n>/           bad rows that were put aside
    reports/<n>.json        counts of each file

Each document is created once and never overwritten, so that one of two runs decides. The next run
abandons a run without an outcome, whose files go back to where they came from; it completes a run
with one. Of `runs` those stay that made the newest masters, as many as there are backups, and the
newest one.

`mutation` is the run, and `recover` in it finishes or undoes one that was killed, as `journal`
decides. `local_master` and `s3_master` move files and swap the master; `exchange` is the one system
call for that.
"""
