"""The opening of stores by their URIs."""

from collections.abc import Callable, Mapping

from opal_lake.errors import InvalidInputError
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.storage.uris import FORMS, memory_name, split_scheme


def open_storage(uri: str, options: Mapping[str, str] | None = None) -> Storage:
    """Open the store at a local path, `file://`, `s3://`, `s3a://` or `memory://name`."""
    scheme, _ = split_scheme(uri)
    opener = _OPENERS.get(scheme)
    if opener is None:
        raise InvalidInputError(f"'{uri}' has the unknown scheme '{scheme}': use {FORMS}")
    return opener(uri, options or {})


def options_for(uri: str, options: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the given options if the store at a URI takes any, otherwise none."""
    scheme, _ = split_scheme(uri)
    if options is None or scheme not in _SCHEMES_WITH_OPTIONS:
        return {}
    return options


def _open_s3(uri: str, options: Mapping[str, str]) -> Storage:
    try:
        # boto3 takes 0.3 s to import, and is an extra.
        from opal_lake.storage.s3 import S3Storage
    except ImportError as error:
        raise InvalidInputError(
            f"'{uri}' needs boto3, which is not installed: pip install 'opal-lake[s3]'"
        ) from error
    return S3Storage.open(uri, options)


def _open_memory(uri: str, options: Mapping[str, str]) -> Storage:
    if options:
        raise InvalidInputError(f"'{uri}' takes no options, got {sorted(options)}: leave them out")
    return MemoryStorage.named(memory_name(uri))


_OPENERS: dict[str, Callable[[str, Mapping[str, str]], Storage]] = {
    "": LocalStorage.open,
    "file": LocalStorage.open,
    "s3": _open_s3,
    "s3a": _open_s3,
    "memory": _open_memory,
}
_SCHEMES_WITH_OPTIONS = {"s3", "s3a"}
