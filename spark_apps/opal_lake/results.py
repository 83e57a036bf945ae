"""Results by token, beside the log: copies of what commits hold, and the results of jobs that commit nothing."""

from dataclasses import replace

from opal_lake import layout
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.job import JobResult
from opal_lake.storage.protocol import Storage

WITHOUT_COMMIT = ("consume",)


def write_result(storage: Storage, result: JobResult) -> JobResult:
    """Keep a result that has a token; the one that stands, if another run of the job was first."""
    assert result.token is not None
    if storage.put_if_absent(layout.result_path(result.token), result.to_json().encode()):
        return result
    return read_result(storage, result.operation, result.token) or result


def read_result(storage: Storage, operation: str, token: str) -> JobResult | None:
    """What a job with this token left, marked as a repeat."""
    try:
        data = storage.get(layout.result_path(token))
    except NotFoundError:
        return None
    found = JobResult.from_json(data.decode())
    if found.operation != operation:
        raise InvalidInputError(f"token {token!r} was used by a {found.operation}; give this {operation} a token of its own")
    return replace(found, repeated=True)
