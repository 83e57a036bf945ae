"""Results of jobs that commit nothing, or more than once, by their tokens."""

from collections.abc import Callable
from dataclasses import replace

from opal_lake import layout
from opal_lake.commit_log import CommitLog
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.job import JobResult
from opal_lake.storage.protocol import Storage

WITHOUT_COMMIT = ("consume", "compact", "zorder", "retain", "maintain")


def run_once(log: CommitLog, operation: str, token: str | None, run: Callable[[], JobResult]) -> JobResult:
    """Run a job whose repeat is harmless, and keep its result; with a token that has one, only say it again."""
    if token is None:
        return run()
    log.earlier_result(log.head(), operation, token)  # refuses a token of a job that commits
    if (earlier := read_result(log.storage, token)) is None:
        return write_result(log.storage, replace(run(), token=token))
    if earlier.operation != operation:
        raise InvalidInputError(f"token {token!r} was used by a {earlier.operation}; give this {operation} a token of its own")
    return earlier


def write_result(storage: Storage, result: JobResult) -> JobResult:
    """Keep a result that has a token; the one that stands, if another run of the job was first."""
    assert result.token is not None
    if storage.put_if_absent(layout.consumed_path(result.token), result.to_json().encode()):
        return result
    return read_result(storage, result.token) or result


def read_result(storage: Storage, token: str) -> JobResult | None:
    """What a job with this token left, marked as a repeat."""
    try:
        data = storage.get(layout.consumed_path(token))
    except NotFoundError:
        return None
    return replace(JobResult.from_json(data.decode()), repeated=True)
