"""Expressions of statements read the columns of the sides, and no other column of the rows."""

import pytest

from opal_lake.errors import InvalidInputError
from opal_spark.read.clause_scope import text_in_scope

SIDES = {"t": ["id", "a`b"], "s": ["id", "x"]}
T, S = "`t`.`id`, `t`.`a``b`", "`s`.`id`, `s`.`x`"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("struct(*)", f"struct({T}, {S})"),
        ("hash(1, *) % 2 * 3", f"hash(1, {T}, {S}) % 2 * 3"),
        ("to_json(struct( T . * , 1))", f"to_json(struct( {T} , 1))"),
        ("struct(s.* EXCEPT (X), '*', `*`)", "struct(`s`.`id`, '*', `*`)"),
        ("struct(* except (id)) IS NULL", "struct(`t`.`a``b`, `s`.`x`) IS NULL"),
        ("struct(place.*)", "struct(place.*)"),
        ("struct(a.t.*)", "struct(a.t.*)"),
        ("a*(*) - (a * b)", f"a*({T}, {S}) - (a * b)"),
        ("(SELECT struct(*) FROM u) + 1 /* (*) */", "(SELECT struct(*) FROM u) + 1 /* (*) */"),
        ("id IN (SELECT t.* FROM t) OR f(*)", f"id IN (SELECT t.* FROM t) OR f({T}, {S})"),
        ("concat('(*)', \"_opal_x\")", "concat('(*)', \"_opal_x\")"),
        ("struct(*", "struct(*"),
    ],
)
def test_a_star_stands_for_the_columns_of_the_sides(text: str, expected: str) -> None:
    assert text_in_scope(text, SIDES) == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("_opal_offset = 0", "reads '_opal_offset': names that begin with '_opal_' are reserved"),
        ("t.`_OPAL_segment`", "reserved for the format"),
        ("struct(* EXCEPT (y))", "EXCEPT names 'y', which is not one of the columns"),
    ],
)
def test_another_column_of_the_rows_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        text_in_scope(text, SIDES)
