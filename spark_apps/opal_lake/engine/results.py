"""Stored results, by token, of jobs that may commit nothing or several versions."""

from collections.abc import Callable
from dataclasses import replace

from opal_lake import layout
from opal_lake.decoding import decoding
from opal_lake.definition.job_names import check_token
from opal_lake.errors import FormatError, InvalidInputError, NotFoundError, PreReleaseError
from opal_lake.log.commit import canonical_json, seal, unseal
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult, checked_result
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed

RESULT_KEPT_APART = ("consume", "compact", "zorder", "retain", "maintain")
DELETE_RESULT = "delete it, and run the job again"
# Operations whose result is in a commit if they changed something, and otherwise stored apart. An
# ingest is not one of them: it always commits, so that no upsert has to look for a stored result.
_MAY_COMMIT_NOTHING = (
    "metagen",
    "discard",
    "rebuild_key_store",
    "set_properties",
    "add_columns",
    "alter",
    "restore",
    "update",
    "delete",
    "merge",
    "overwrite",
    "drop_partition",
    "replace",
    "insert",
    "erase",
)


def run_once(
    log: CommitLog, operation: str, token: str | None, run: Callable[[], JobResult]
) -> JobResult:
    """Run a job whose repeat is harmless, and store its result.

    If the token has a result already, return that one without running the job.
    """
    if token is None:
        return run()
    earlier = find_result(log, log.head(), operation, token)
    if earlier is not None:
        return earlier
    return keep_result(log.storage, replace(run(), token=token))


def find_result(
    log: CommitLog, head: Snapshot, operation: str, token: str | None
) -> JobResult | None:
    """Return the result of an earlier job with this token, None if there is none.

    The result is in a commit, or was stored apart. Raises InvalidInputError for a token of another
    operation.
    """
    committed = log.earlier_result(head, operation, token)
    may_be_apart = operation in (*RESULT_KEPT_APART, *_MAY_COMMIT_NOTHING)
    if committed is not None or token is None or not may_be_apart:
        return committed
    earlier = read_result(log.storage, token)
    if earlier is not None and earlier.operation != operation:
        raise InvalidInputError(
            f"token {token!r} was used by a {earlier.operation}; "
            f"give this {operation} another token"
        )
    return earlier


def result_of_token(
    log: CommitLog, head: Snapshot, token: str, *, expected: str
) -> JobResult | None:
    """Return the result of whichever job had a token, None if none had it.

    A result whose commit has expired counts as one of the expected operation.
    """
    check_token(token)
    version = head.version_of_token(token)
    if version is None:
        return read_result(log.storage, token)
    try:
        operation = log.read_commit(version).operation
    except NotFoundError:
        operation = expected
    return log.earlier_result(head, operation, token)


def keep_result(storage: Storage, result: JobResult) -> JobResult:
    """Store a result with a token. Return it, or the result that is stored already."""
    if result.token is None:
        return result
    # I4: a sealed JobResult, with the name of its token
    data = seal(canonical_json(result.to_dict()))
    if storage.put_if_absent(layout.result_path(result.token), data):
        return result
    return read_result(storage, result.token) or result


def read_result(storage: Storage, token: str) -> JobResult | None:
    """Return the stored result of a token, marked as a repeat, None if there is none."""
    check_token(token)
    return result_at(storage, layout.result_path(token))


def result_at(storage: Storage, path: str) -> JobResult | None:
    """Return the result at a path, marked as a repeat, None if it does not exist."""
    try:
        data = read_sealed(storage, path)
    except NotFoundError:
        return None
    address = f"{storage.uri}/{path}"
    try:
        body = unseal(data, address)
    except PreReleaseError:
        raise
    except FormatError as error:
        raise FormatError(f"{address} is damaged; {DELETE_RESULT}") from error
    with decoding(address, "a result", DELETE_RESULT):
        return replace(JobResult.from_dict(checked_result(body)), repeated=True)
