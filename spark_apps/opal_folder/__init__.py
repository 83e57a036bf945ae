"""Files merged into a folder of files without a table: which files, in which order, and a swap that no crash leaves halfway. No Spark.

Beside the master lies its folder `<master>.mutate`:

    runs/<n>/claim.json     the increments of run n, listed once
    runs/<n>/outcome.json   what became of it: the new master (decided), or that the files went back (abandoned)
    runs/<n>/done.json      the result, when all is in place
    working/<n>/, done/<n>/ the increments while they are merged, and afterwards; on S3 copies, until the run is decided
    staged/<n>/             a new master before it is one; on S3 masters/<n>/, where it stays
    originals/<n>.json      on S3 the files of before the first run: retention deletes no others of the master's folder
    backup-<n>/             on local files the master that run n replaced
    merged/<digest>         of each merged file its name, and those of the folders that it came from
    results/<digest>.json   what the run with a token said
    rejected/<n>/           bad rows that were put aside
    reports/<n>.json        counts of each file

Each document is created once and never overwritten, so that of two runs one decides. A run without an outcome is abandoned by the next one,
and its files go back to where they came from; a run with one is completed. Of `runs` those stay that made the newest masters, as many as
there are backups, and the newest one.

`mutation` is the run, and `recover` in it finishes or undoes one that was killed, as `journal` decides. `local_place` and `s3_place` move
files and swap the master; `exchange` is the one system call for that.
"""
