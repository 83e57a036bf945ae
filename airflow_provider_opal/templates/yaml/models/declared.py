"""Models whose keys are the arguments of an operation's declaration."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import Field as DeclaredField
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, create_model

from airflow_provider_opal.sensors.pacing import StartTimestamp
from airflow_provider_opal.templates.yaml.models.base import (
    Codec,
    Columns,
    DeltaSpan,
    Duration,
    Function,
    Moment,
    Number,
    Percent,
    Text,
    Threshold,
    ZOrder,
)
from opal_lake.arguments import values as kinds
from opal_lake.arguments.declared import (
    Declared,
    default_of,
    help_of,
    is_required,
    kind_of,
    plain_type,
    types_of,
)
from opal_lake.duration import parse_duration
from opal_stream.operations.reading import Partitions

ModelT = TypeVar("ModelT", bound=type[BaseModel])

# How YAML writes each kind of value
_BY_KIND: dict[kinds.Kind | None, Any] = {
    kind_of(kind): yaml
    for kind, yaml in (
        (kinds.Span, Duration),
        (kinds.DeltaSpan, DeltaSpan),
        (kinds.PolicySpan, DeltaSpan),
        (kinds.MegaBytes, Number),
        (kinds.Count, Number),
        (kinds.RowCount, Annotated[int, Field(ge=1)]),
        (kinds.PositiveSpan, Duration),
        (Partitions, list[int | Text]),
        (kinds.Percent, Percent),
        (kinds.Codec, Codec),
        (kinds.Columns, Columns),
        (kinds.PolicyColumns, ZOrder),
        (kinds.Function, Function),
        (kinds.Threshold, Threshold),
        (StartTimestamp, Moment),
    )
}


def with_arguments_of(
    declared: type[Declared],
    *only: str,
    but: Collection[str] = (),
    optional: Collection[str] = (),
    prefix: str = "",
) -> Callable[[ModelT], ModelT]:
    """Return a class decorator that adds a declaration's arguments as keys.

    `only` selects some of them, `but` leaves some out. The `optional` ones may be missing in YAML,
    though the operation needs them. `prefix` comes before all names.
    """

    def decorate(model: ModelT) -> ModelT:
        known = declared.fields()
        fields = {}
        for name in only or [name for name in known if name not in but]:
            # `schema` would hide a method of pydantic's models
            key = f"{name}_" if hasattr(BaseModel, name) else f"{prefix}{name}"
            fields[key] = _key(name, known[name], is_optional=name in optional)
        made: Any = create_model(  # type: ignore[call-overload]  # fields by name
            model.__name__,
            __base__=model,
            __module__=model.__module__,
            __doc__=model.__doc__,
            **fields,
        )
        return made  # type: ignore[no-any-return]  # a subclass of the model

    return decorate


def _key(name: str, member: "DeclaredField[Any]", *, is_optional: bool) -> tuple[Any, Any]:
    """Return the pydantic type and the Field of an argument's YAML key."""
    text = help_of(member.type)
    described: dict[str, Any] = {
        "description": _sentence(text.text) if text else None,
        # The key in YAML is the argument, also if the model's field has another name
        "alias": name if hasattr(BaseModel, name) else None,
    }
    yaml_type = _yaml_type(member)
    if is_optional:
        return yaml_type | None, Field(None, **described)
    if is_required(member):
        return yaml_type, Field(**described)
    default = default_of(member)
    # An empty default becomes null: a key that is left out is not passed to the operation
    if default in (None, [], {}):
        return yaml_type | None, Field(None, **described)
    if yaml_type is Duration:
        default = timedelta(microseconds=parse_duration(default, name=name))
    return yaml_type, Field(default, **described)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _yaml_type(member: "DeclaredField[Any]") -> Any:
    kind = kind_of(member.type)
    if kind is not None and kind.choices:
        return Literal[kind.choices]
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    types = types_of(member.type) - {type(None)}
    if types == {str}:
        return Text
    if types == {Mapping[str, str]}:
        return dict[Text, Text]
    (only,) = types
    return plain_type(Annotated[only, ""])
