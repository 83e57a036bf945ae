"""Methods that are made of declarations, for the reference pages.

mkdocstrings reads code without running it, and sees only the declarations.
"""

import inspect
from importlib import import_module
from typing import Any

import griffe

MAKERS = ("verb(", "rows_verb(")


class Verbs(griffe.Extension):
    """An extension that shows `compact = verb(Compact)` as a method."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Replace each such attribute by a function with the signature of its declaration."""
        del kwargs
        for name, member in list(cls.members.items()):
            if isinstance(member, griffe.Attribute) and str(member.value).startswith(MAKERS):
                owner = getattr(import_module(cls.module.path), cls.name)
                cls.set_member(name, _method(member, getattr(owner, name)))


def _method(attribute: griffe.Attribute, method: Any) -> griffe.Function:
    arguments = inspect.signature(method).parameters.values()
    return griffe.Function(
        attribute.name,
        lineno=attribute.lineno,
        endlineno=attribute.endlineno,
        parameters=griffe.Parameters(*map(_parameter, arguments)),
        docstring=griffe.Docstring(inspect.getdoc(method) or ""),
        parent=attribute.parent,
    )


def _parameter(argument: inspect.Parameter) -> griffe.Parameter:
    kinds: dict[Any, griffe.ParameterKind] = {
        inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_or_keyword,
        inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
        inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    }
    is_required = argument.default is argument.empty
    has_type = argument.annotation is not argument.empty
    return griffe.Parameter(
        argument.name,
        kind=kinds[argument.kind],
        annotation=_type_text(argument.annotation) if has_type else None,
        default=None if is_required else repr(argument.default),
    )


def _type_text(kind: Any) -> str:
    text = inspect.formatannotation(kind)
    for module in ("collections.abc.", "datetime.", "typing."):
        text = text.replace(module, "")
    return text
