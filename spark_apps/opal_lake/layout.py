"""Every path and file name of a table. Nothing else in the project spells one."""

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

_VERSION_DIGITS = 20
_TURNS = (4096, 16)
_NUMBER_DIGITS = 10
_BATCH_DIGITS = 8
_GREATEST = 10**_VERSION_DIGITS - 1
_MAX_FOLDER_VALUE = 80
_REBUILD_RECORD = re.compile(r"/([0-9]{10,})-([0-9a-f]{8})-([0-9a-f]{8})\.json\Z")
_DIGEST = re.compile(re.escape(DIGESTS) + r"[0-9]{20}-([0-9a-f]{8})\.jsonl\.zst")
_LOG_PAGE = re.compile(re.escape(LOG_PAGES) + r"([0-9]{20})-([0-9]{20})-([0-9a-f]{8})\.jsonl\.zst")
_GATHERED = re.compile(rf"({re.escape(GATHERED)}[^/]+/)([0-9]{{20}})\.rows")
_TRAFFIC = re.compile(re.escape(TRAFFIC) + r"([0-9]{15})-[A-Za-z0-9._-]{1,64}\.json")
_PART_OF_ESCAPE = re.compile(r"%[0-9A-F]?\Z")
_MAX_TOKEN_NAME = 200
_MAX_PATH = 1024  # bytes, which is what S3 takes for a key
_STEM = r"[0-9]{10,}-[0-9a-f]{8,}-[A-Za-z0-9._-]+"
_AS_OF = r"[0-9]{20}-[A-Za-z0-9._-]+"


class PathKind(Enum):
    """What a path in a table's metadata may look like, by what it names. None of these leads out of the table."""

    DATA = rf"data/(?:[A-Za-z0-9_.~%-]+=[A-Za-z0-9_.~%-]*/)*{_STEM}\.(?:parquet|orc)"
    LOG = rf"_opal/segment_logs/{_STEM}\.parquet"
    RUN = rf"_opal/key_store/{_STEM}\.run"
    BASE = rf"_opal/bitmaps/[0-9]{{10,}}/{_AS_OF}\.bits"
    SECTION = rf"_opal/checkpoints/sections/{_AS_OF}\.jsonl\.zst"
    SIDE = r"_opal/side/[0-9]{10,}-[0-9]+\.jsonl\.zst"


_PATTERNS = {kind: re.compile(kind.value).fullmatch for kind in PathKind}


def own_path(kind: PathKind, path: object) -> str:
    """The path itself, if it has the form of its kind; metadata is untrusted (FORMAT, untrusted metadata)."""
    if not isinstance(path, str) or len(path) > _MAX_PATH or not _PATTERNS[kind](path):
        what = f"which is no path of a {kind.name.lower()} file in this format"
        raise ForeignPathError(
            f"it names {repr(path)[:200]}, {what}; restore it from a backup, or do not trust this table"
        )
    return path


def inner_table(path: str) -> str | None:
    """Return the folder of another table that a path within this one shows, None if it shows none.

    Nothing that a table writes has `_opal/log/` below a folder of its own.
    """
    folder, has_log, _ = path.partition(f"/{LOG}")
    return f"{folder}/" if has_log else None


def commit_path(version: int) -> str:
    return f"{LOG}{version:0{_VERSION_DIGITS}d}.json"


def commit_version(path: str) -> int | None:
    """The version of a path below the log, None for a stranger's file."""
    name = path.removeprefix(LOG).removesuffix(".json")
    return (
        int(name)
        if path == f"{LOG}{name}.json" and len(name) == _VERSION_DIGITS and name.isdecimal()
        else None
    )


def commit_turn(version: int) -> int:
    """Commits of an earlier turn are deleted first."""
    return next((turn for turn, step in enumerate(_TURNS) if version % step == 0), len(_TURNS))


def vouching_version(version: int) -> int | None:
    """The voucher of a version: the last commit before it of an earlier turn. While it exists, the version was never deleted."""
    turn = commit_turn(version)
    return (version - 1) // _TURNS[turn - 1] * _TURNS[turn - 1] if turn else None


def vouching_versions(version: int) -> frozenset[int]:
    """Those up to a version that vouch for the ones after it."""
    return frozenset(version // step * step for step in _TURNS)


def checkpoint_path(version: int, write_id: str) -> str:
    """Counted down, so that a listing begins with the newest."""
    return f"{CHECKPOINTS}{_GREATEST - version:0{_VERSION_DIGITS}d}-{write_id}.json"


def checkpoint_start_after(version: int) -> str:
    """Where a listing of the checkpoints at or below a version begins."""
    return f"{CHECKPOINTS}{_GREATEST - version:0{_VERSION_DIGITS}d}"


def checkpoint_version(path: str) -> int | None:
    digits = path.removeprefix(CHECKPOINTS)[:_VERSION_DIGITS]
    return (
        _GREATEST - int(digits)
        if path.endswith(".json") and len(digits) == _VERSION_DIGITS and digits.isdecimal()
        else None
    )


def section_path(version: int, write_id: str, section: str, after: int | None = None) -> str:
    """A list as of a version; with `after`, what changed since that version."""
    return f"{SECTIONS}{version:0{_VERSION_DIGITS}d}-{write_id}-{section}{_since(after)}.jsonl.zst"


def _since(after: int | None) -> str:
    return "" if after is None else f"-after-{after}"


def section_version(path: str) -> int | None:
    """The version that a section was written with, None for a stranger's file."""
    digits = path.removeprefix(SECTIONS)[:_VERSION_DIGITS]
    return (
        int(digits)
        if path.startswith(SECTIONS) and len(digits) == _VERSION_DIGITS and digits.isdecimal()
        else None
    )


def digest_path(version: int, crc32: int) -> str:
    """Counted down, as checkpoints are."""
    return f"{DIGESTS}{_GREATEST - version:0{_VERSION_DIGITS}d}-{crc32:08x}.jsonl.zst"


def digest_checksum(path: str) -> int | None:
    """That of the bytes of a digest, None for a stranger's file."""
    match = _DIGEST.fullmatch(path)
    return int(match[1], 16) if match else None


def log_page_path(first: int, last: int, crc32: int) -> str:
    """Return the path of a page of the log; its end is counted down, as that of checkpoints is."""
    end = f"{_GREATEST - last:0{_VERSION_DIGITS}d}"
    return f"{LOG_PAGES}{end}-{first:0{_VERSION_DIGITS}d}-{crc32:08x}.jsonl.zst"


def log_pages_start_after(last: int) -> str:
    """Return where a listing of the pages that end at or below a version begins."""
    return f"{LOG_PAGES}{max(0, _GREATEST - last):0{_VERSION_DIGITS}d}"


def log_page_place(path: str) -> tuple[int, int, int] | None:
    """Return first version, last version and checksum of a page, None for a stranger's file."""
    match = _LOG_PAGE.fullmatch(path)
    return (int(match[2]), _GREATEST - int(match[1]), int(match[3], 16)) if match else None


def claim_path(number: int) -> str:
    return f"{CLAIMS}{number:010d}.json"


def claim_number(path: str) -> int | None:
    name = path.removeprefix(CLAIMS).removesuffix(".json")
    return int(name) if path == f"{CLAIMS}{name}.json" and name.isdecimal() else None


def job_file_name(number: int, sequence: int, attempt: str) -> str:
    """The stem of a file that a job writes: the claimed number makes it unique, the attempt tells repeated tasks apart."""
    return f"{number:010d}-{sequence:08x}-{attempt}"


def data_path(partition: list[tuple[str, str | None]], stem: str, file_format: str) -> str:
    """Partition folders are for people who look: nothing reads them."""
    folders = "".join(
        f"{_short(quote(name, safe=''))}={_folder_value(value)}/" for name, value in partition
    )
    return f"{DATA}{folders}{stem}.{file_format}"


def beside(path: str, stem: str, file_format: str) -> str:
    """A data file in the folder of another."""
    return f"{folder_of(path)}/{stem}.{file_format}"


def folder_of(path: str) -> str:
    """Where a data file lies: files of one partition lie together."""
    return path.rpartition("/")[0]


def _folder_value(value: str | None) -> str:
    return "__null__" if value is None else _short(quote(value, safe="")) or "__empty__"


def _short(quoted: str) -> str:
    """Cut where no escape is; two columns and a file name still fit into the 255 bytes of a name and the 1,024 of a key."""
    return (
        quoted
        if len(quoted) <= _MAX_FOLDER_VALUE
        else _PART_OF_ESCAPE.sub("", quoted[:_MAX_FOLDER_VALUE])
    )


def segment_log_path(stem: str) -> str:
    return f"{SEGMENT_LOGS}{stem}.parquet"


def run_path(stem: str) -> str:
    return f"{KEY_STORE}{stem}.run"


def runs_prefix(number: int) -> str:
    """Begins the paths of all runs of a job."""
    return f"{KEY_STORE}{number:010d}-"


def bitmap_path(group: int, version: int, write_id: str, after: int | None = None) -> str:
    return f"{BITMAPS}{group:010d}/{version:0{_VERSION_DIGITS}d}-{write_id}{_since(after)}.bits"


def bitmap_version(path: str) -> int | None:
    """The version of a bitmap base, None for a stranger's file."""
    digits = path.rpartition("/")[2].partition("-")[0]
    return int(digits) if len(digits) == _VERSION_DIGITS and digits.isdecimal() else None


def job_number(path: str) -> int | None:
    """The number of the job that wrote a file, None for a stranger's."""
    digits, dash, _ = path.rpartition("/")[2].partition("-")
    return int(digits) if dash and len(digits) >= _NUMBER_DIGITS and digits.isdecimal() else None


def side_path(number: int, attempt: int) -> str:
    """The bulk list of a commit."""
    return f"{SIDE}{number:010d}-{attempt}.jsonl.zst"


def result_path(token: str) -> str:
    """Return the path of the result of a job that commits nothing, or more than once."""
    return f"{RESULTS}{_token_name(token)}.json"


def _token_name(token: str) -> str:
    """The token itself where it is short enough for a file name; else its beginning and a checksum."""
    name = quote(token, safe="")
    return (
        name
        if len(name) <= _MAX_TOKEN_NAME
        else f"{name[:_MAX_FOLDER_VALUE]}-{sha256(token.encode()).hexdigest()}"
    )


def gathered_folder(application: str) -> str:
    """Rows of an application that no commit holds yet."""
    return f"{GATHERED}{_token_name(application)}/"


def gathered_prefix(beginning: str) -> str:
    """Of the folders of all applications whose names begin so, and of others if that is long."""
    return GATHERED + quote(beginning, safe="")[:_MAX_FOLDER_VALUE]


def gathered_path(application: str, position: int) -> str:
    """Named by where they begin alone, so that no two files begin there."""
    return f"{gathered_folder(application)}{position:0{_VERSION_DIGITS}d}.rows"


def gathered_place(path: str) -> tuple[str, int] | None:
    """Folder and position, None for a stranger's file."""
    match = _GATHERED.fullmatch(path)
    return (match[1], int(match[2])) if match else None


def traffic_path(moment_ms: int, write_id: str) -> str:
    """What a process of a stream counted, as of a time."""
    return f"{TRAFFIC}{moment_ms:015d}-{write_id}.json"


def traffic_moment(path: str) -> int | None:
    """That time, in milliseconds since 1970; None for a stranger's file."""
    match = _TRAFFIC.fullmatch(path)
    return int(match[1]) if match else None


def rejected_path(stem: str) -> str:
    return f"{REJECTED}{stem}.parquet"


def rejected_task(path: str) -> str:
    """Return the job and the task that rejected the rows in a file; its attempts have one file each."""
    return "-".join(path.rpartition("/")[2].split("-")[:2])


def rejected_pattern(number: int) -> str:
    """All that one job rejected."""
    return f"{REJECTED}{number:010d}-*.parquet"


def rebuild_folder(state: str) -> str:
    """Records of key-store rebuilds that began with the same rows and runs in the table."""
    return f"{REBUILD}{state}/"


def rebuild_path(state: str, number: int, slots: int, slot: int) -> str:
    """What one of `slots` tasks of job `number` wrote."""
    return f"{rebuild_folder(state)}{number:010d}-{slots:08x}-{slot:08x}.json"


def rebuild_place(path: str) -> tuple[int, int, int] | None:
    """Number, slots and slot of a record, None for a stranger's file."""
    match = _REBUILD_RECORD.search(path)
    return (int(match[1]), int(match[2], 16), int(match[3], 16)) if match else None


def bootstrap_folder(name: str) -> str:
    """What a bootstrap of one source has fixed and done."""
    return f"{BOOTSTRAP}{name}/"


def bootstrap_plan_path(name: str) -> str:
    return f"{bootstrap_folder(name)}plan.json"


def bootstrap_batch_path(name: str, batch: int) -> str:
    return f"{bootstrap_folder(name)}{batch:0{_BATCH_DIGITS}d}.json"


def bootstrap_batch(path: str) -> int | None:
    """The number of a batch's record, None for any other file."""
    digits = path.rpartition("/")[2].removesuffix(".json")
    return (
        int(digits)
        if path.endswith(".json") and len(digits) >= _BATCH_DIGITS and digits.isdecimal()
        else None
    )


def bootstrap_result_path(name: str) -> str:
    return f"{bootstrap_folder(name)}result.json"
