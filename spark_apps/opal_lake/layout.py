"""All paths and file names of a table. No other module spells one."""

import re
from enum import Enum
from hashlib import sha256
from urllib.parse import quote

from opal_lake.errors import ForeignPathError

DATA = "data/"
META = "_opal/"
LOG = META + "log/"
CHECKPOINTS = META + "checkpoints/"
SECTIONS = CHECKPOINTS + "sections/"
SEGMENT_LOGS = META + "segment_logs/"
BITMAPS = META + "bitmaps/"
KEY_STORE = META + "key_store/"
CLAIMS = META + "claims/"
RESULTS = META + "results/"
REJECTED = META + "rejected/"
SIDE = META + "side/"
REBUILD = META + "rebuild/"
BOOTSTRAP = META + "bootstrap/"
DIGESTS = META + "digests/"
LOG_PAGES = META + "log_pages/"
GATHERED = META + "gathered/"
TRAFFIC = META + "traffic/"
DROPPED = META + "dropped.json"  # it exists while a drop deletes the table's files

_VERSION_DIGITS = 20
# Retention deletes commits in turns: first the versions that are multiples of 4096, then those of
# 16, then the others.
_TURNS = (4096, 16)
_NUMBER_DIGITS = 10
_BATCH_DIGITS = 8
# Paths that count down from here list the newest version first.
_GREATEST: int = 10**_VERSION_DIGITS - 1
# Most characters of a column's name, and of its value, in a folder's name: a name has at most 255
# bytes, and a key with two such folders and a file name at most 1,024.
_MAX_FOLDER_VALUE = 80
_REBUILD_RECORD = re.compile(r"/([0-9]{10,})-([0-9a-f]{8})-([0-9a-f]{8})\.json\Z")
_DIGEST = re.compile(re.escape(DIGESTS) + r"[0-9]{20}-([0-9a-f]{8})\.jsonl\.zst")
_LOG_PAGE = re.compile(re.escape(LOG_PAGES) + r"([0-9]{20})-([0-9]{20})-([0-9a-f]{8})\.jsonl\.zst")
_GATHERED = re.compile(rf"({re.escape(GATHERED)}[^/]+/)([0-9]{{20}})\.rows")
_TRAFFIC = re.compile(re.escape(TRAFFIC) + r"([0-9]{15})-[A-Za-z0-9._-]{1,64}\.json")
_PART_OF_ESCAPE = re.compile(r"%[0-9A-F]?\Z")
_MAX_TOKEN_NAME = 200
_MAX_PATH = 1024  # bytes, the limit of S3 for a key
_STEM = r"[0-9]{10,}-[0-9a-f]{8,}-[A-Za-z0-9._-]+"
_AS_OF = r"[0-9]{20}-[A-Za-z0-9._-]+"


class PathKind(Enum):
    """The forms of paths in a table's metadata, by the kind of file.

    I23: none of these leads out of the table.
    """

    DATA = rf"data/(?:[A-Za-z0-9_.~%-]+=[A-Za-z0-9_.~%-]*/)*{_STEM}\.(?:parquet|orc)"
    LOG = rf"_opal/segment_logs/{_STEM}\.parquet"
    RUN = rf"_opal/key_store/{_STEM}\.run"
    BASE = rf"_opal/bitmaps/[0-9]{{10,}}/{_AS_OF}\.bits"
    SECTION = rf"_opal/checkpoints/sections/{_AS_OF}\.jsonl\.zst"
    SIDE = r"_opal/side/[0-9]{10,}-[0-9]+\.jsonl\.zst"


_PATTERNS = {kind: re.compile(kind.value).fullmatch for kind in PathKind}


def own_path(kind: PathKind, path: object) -> str:
    """Return a path of untrusted metadata, checked for the form of its kind.

    Raises ForeignPathError for a path of another form, which may lead out of the table.
    """
    if not isinstance(path, str) or len(path) > _MAX_PATH or not _PATTERNS[kind](path):
        raise ForeignPathError(
            f"it names {repr(path)[:200]}, which is not a path of a {kind.name.lower()} file "
            "in this format; restore the file from a backup, or do not trust this table"
        )
    return path


def inner_table(path: str) -> str | None:
    """Return the folder of another table that lies within this one and has this file.

    Returns None for a file of this table.
    """
    # A table's own log is at its root: `_opal/log/` in a deeper folder is another table's.
    folder, log, _ = path.partition(f"/{LOG}")
    return f"{folder}/" if log else None


def _padded(version: int) -> str:
    return f"{version:0{_VERSION_DIGITS}d}"


def _counted_down(version: int) -> str:
    """Return digits that fall as versions rise: listings begin with the newest one."""
    return _padded(_GREATEST - version)


def _version_of(digits: str) -> int | None:
    """Return the version that a text of 20 digits writes, None for other texts."""
    is_version = len(digits) == _VERSION_DIGITS and digits.isdecimal()
    return int(digits) if is_version else None


def commit_path(version: int) -> str:
    return f"{LOG}{_padded(version)}.json"


def commit_version(path: str) -> int | None:
    """Return the version of a commit's path, None for another file's."""
    name = path.removeprefix(LOG).removesuffix(".json")
    if path != f"{LOG}{name}.json":
        return None
    return _version_of(name)


def commit_turn(version: int) -> int:
    """Return the turn, from 0, in which retention deletes the commit of a version."""
    for turn, step in enumerate(_TURNS):
        if version % step == 0:
            return turn
    return len(_TURNS)


def vouching_version(version: int) -> int | None:
    """Return the voucher of a version: the last one before it with an earlier turn.

    Retention deletes the voucher's commit first. So while that exists, the commit of the version
    was never deleted. Versions of turn 0 have no voucher.
    """
    turn = commit_turn(version)
    if turn == 0:
        return None
    step = _TURNS[turn - 1]
    return (version - 1) // step * step


def vouching_versions(version: int) -> frozenset[int]:
    """Return the versions, up to this one, that can be vouchers of later versions."""
    return frozenset(version // step * step for step in _TURNS)


def checkpoint_path(version: int, write_id: str) -> str:
    return f"{CHECKPOINTS}{_counted_down(version)}-{write_id}.json"


def checkpoint_start_after(version: int) -> str:
    """Return where a listing of the checkpoints at or below a version begins."""
    return f"{CHECKPOINTS}{_counted_down(version)}"


def checkpoint_version(path: str) -> int | None:
    """Return the version of a checkpoint's path, None for another file's."""
    counted_down = _version_of(path.removeprefix(CHECKPOINTS)[:_VERSION_DIGITS])
    if counted_down is None or not path.endswith(".json"):
        return None
    return _GREATEST - counted_down


def section_path(version: int, write_id: str, section: str, after: int | None = None) -> str:
    """Return the path of a list as of a version, or of its changes since `after`."""
    return f"{SECTIONS}{_padded(version)}-{write_id}-{section}{_since(after)}.jsonl.zst"


def _since(after: int | None) -> str:
    return "" if after is None else f"-after-{after}"


def section_version(path: str) -> int | None:
    """Return the version that a section was written with, None for another file."""
    if not path.startswith(SECTIONS):
        return None
    return _version_of(path.removeprefix(SECTIONS)[:_VERSION_DIGITS])


def digest_path(version: int, crc32: int) -> str:
    return f"{DIGESTS}{_counted_down(version)}-{crc32:08x}.jsonl.zst"


def digest_checksum(path: str) -> int | None:
    """Return the checksum of a digest, by its path; None for another file's."""
    match = _DIGEST.fullmatch(path)
    return int(match[1], 16) if match else None


def log_page_path(first: int, last: int, crc32: int) -> str:
    """Return the path of a page of the log."""
    return f"{LOG_PAGES}{_counted_down(last)}-{_padded(first)}-{crc32:08x}.jsonl.zst"


def log_pages_start_after(last: int) -> str:
    """Return where a listing of the pages that end at or below a version begins."""
    return f"{LOG_PAGES}{_counted_down(min(last, _GREATEST))}"


def log_page_place(path: str) -> tuple[int, int, int] | None:
    """Return the first version, the last version and the checksum of a log page.

    Returns None for another file.
    """
    match = _LOG_PAGE.fullmatch(path)
    if match is None:
        return None
    first, last = int(match[2]), _GREATEST - int(match[1])
    return first, last, int(match[3], 16)


def claim_path(number: int) -> str:
    return f"{CLAIMS}{number:010d}.json"


def claim_number(path: str) -> int | None:
    """Return the number of a claim's path, None for another file's."""
    name = path.removeprefix(CLAIMS).removesuffix(".json")
    is_claim = path == f"{CLAIMS}{name}.json" and name.isdecimal()
    return int(name) if is_claim else None


def job_file_name(number: int, sequence: int, attempt: str) -> str:
    """Return the stem of a file that a job writes.

    The job's claimed number makes it unique. Repeated tasks differ in their `attempt`.
    """
    # I5: the number is part of the name of every new file of the job.
    return f"{number:010d}-{sequence:08x}-{attempt}"


def data_path(partition: list[tuple[str, str | None]], stem: str, file_format: str) -> str:
    """Return the path of a data file.

    Its folders show the partition to people: no reader uses them.
    """
    folders = ""
    for name, value in partition:
        folders += f"{_short(quote(name, safe=''))}={_folder_value(value)}/"
    return f"{DATA}{folders}{stem}.{file_format}"


def next_to(path: str, stem: str, file_format: str) -> str:
    """Return the path of a data file in the folder of another one."""
    return f"{folder_of(path)}/{stem}.{file_format}"


def folder_of(path: str) -> str:
    """Return the folder of a data file: files of a partition have the same one."""
    folder, _, _ = path.rpartition("/")
    return folder


def _folder_value(value: str | None) -> str:
    if value is None:
        return "__null__"
    return _short(quote(value, safe="")) or "__empty__"


def _short(quoted: str) -> str:
    """Cut a part of a folder's name, but not within a percent escape."""
    if len(quoted) <= _MAX_FOLDER_VALUE:
        return quoted
    return _PART_OF_ESCAPE.sub("", quoted[:_MAX_FOLDER_VALUE])


def segment_log_path(stem: str) -> str:
    return f"{SEGMENT_LOGS}{stem}.parquet"


def run_path(stem: str) -> str:
    return f"{KEY_STORE}{stem}.run"


def runs_prefix(number: int) -> str:
    """Return the prefix of the paths of a job's runs."""
    return f"{KEY_STORE}{number:010d}-"


def bitmap_path(group: int, version: int, write_id: str, after: int | None = None) -> str:
    return f"{BITMAPS}{group:010d}/{_padded(version)}-{write_id}{_since(after)}.bits"


def bitmap_version(path: str) -> int | None:
    """Return the version of a bitmap base, None for another file."""
    digits, _, _ = _name_of(path).partition("-")
    return _version_of(digits)


def _name_of(path: str) -> str:
    _, _, name = path.rpartition("/")
    return name


def job_number(path: str) -> int | None:
    """Return the number of the job that wrote a file, None for another file."""
    digits, dash, _ = _name_of(path).partition("-")
    is_number = len(digits) >= _NUMBER_DIGITS and digits.isdecimal()
    if not dash or not is_number:
        return None
    return int(digits)


def side_path(number: int, attempt: int) -> str:
    """Return the path of a side file, the long list of a commit."""
    return f"{SIDE}{number:010d}-{attempt}.jsonl.zst"


def result_path(token: str) -> str:
    """Return the path of a job result that is not stored with a commit."""
    return f"{RESULTS}{_token_name(token)}.json"


def _token_name(token: str) -> str:
    """Return a token as a file name. A long token is its beginning and a checksum."""
    name = quote(token, safe="")
    if len(name) <= _MAX_TOKEN_NAME:
        return name
    checksum = sha256(token.encode()).hexdigest()
    return f"{name[:_MAX_FOLDER_VALUE]}-{checksum}"


def gathered_folder(application: str) -> str:
    """Return the folder of an application's rows that are not committed yet."""
    return f"{GATHERED}{_token_name(application)}/"


def gathered_prefix(beginning: str) -> str:
    """Return the prefix of the folders of applications whose names begin with a text.

    A long text is cut. Then folders of other applications may have the prefix as well.
    """
    quoted = quote(beginning, safe="")
    return GATHERED + quoted[:_MAX_FOLDER_VALUE]


def gathered_path(application: str, position: int) -> str:
    """Return the path of a file of gathered rows that begin at a position."""
    # The name has nothing else, so that two files of one position cannot both exist.
    return f"{gathered_folder(application)}{_padded(position)}.rows"


def gathered_place(path: str) -> tuple[str, int] | None:
    """Return the folder and the position of a file of gathered rows.

    Returns None for another file.
    """
    match = _GATHERED.fullmatch(path)
    if match is None:
        return None
    return match[1], int(match[2])


def traffic_path(moment_ms: int, write_id: str) -> str:
    """Return the path of the counts that a process of a stream wrote at a time."""
    return f"{TRAFFIC}{moment_ms:015d}-{write_id}.json"


def traffic_moment(path: str) -> int | None:
    """Return the time of counts, in milliseconds since 1970; None for another file."""
    match = _TRAFFIC.fullmatch(path)
    return int(match[1]) if match else None


def rejected_path(stem: str) -> str:
    return f"{REJECTED}{stem}.parquet"


def rejected_task(path: str) -> str:
    """Return the job and the task that rejected the rows in a file, as `job-task`.

    Each attempt of the task has its own file.
    """
    job_and_task = _name_of(path).split("-")[:2]
    return "-".join(job_and_task)


def rejected_pattern(number: int) -> str:
    """Return a pattern of the files of all rows that a job rejected."""
    return f"{REJECTED}{number:010d}-*.parquet"


def rebuild_folder(state: str) -> str:
    """Return the folder of key-store rebuilds that began with the same rows and runs."""
    return f"{REBUILD}{state}/"


def rebuild_path(state: str, number: int, slots: int, slot: int) -> str:
    """Return the path of the record of one of `slots` tasks of job `number`."""
    return f"{rebuild_folder(state)}{number:010d}-{slots:08x}-{slot:08x}.json"


def rebuild_place(path: str) -> tuple[int, int, int] | None:
    """Return the job's number, the number of slots and the slot of a rebuild's record.

    Returns None for another file.
    """
    match = _REBUILD_RECORD.search(path)
    if match is None:
        return None
    return int(match[1]), int(match[2], 16), int(match[3], 16)


def bootstrap_folder(name: str) -> str:
    """Return the folder of a bootstrap's plan and records."""
    return f"{BOOTSTRAP}{name}/"


def bootstrap_plan_path(name: str) -> str:
    return f"{bootstrap_folder(name)}plan.json"


def bootstrap_batch_path(name: str, batch: int) -> str:
    return f"{bootstrap_folder(name)}{batch:0{_BATCH_DIGITS}d}.json"


def bootstrap_batch(path: str) -> int | None:
    """Return the number of a batch's record, None for another file."""
    if not path.endswith(".json"):
        return None
    digits = _name_of(path).removesuffix(".json")
    is_batch = len(digits) >= _BATCH_DIGITS and digits.isdecimal()
    return int(digits) if is_batch else None


def bootstrap_result_path(name: str) -> str:
    return f"{bootstrap_folder(name)}result.json"
