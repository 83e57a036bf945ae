"""What a delete condition may hold: an allow-list, because Spark's driver evaluates a condition that a foreign table brings."""

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.spec.condition import MOST_CHARACTERS, check_condition
from opal_lake.spec.table_spec import TableLayout, plan_spec
from tests.opal_lake.shop import SCHEMA

COLUMNS = [
    "op",
    "at",
    "price",
    "tags",
    "attrs",
    "nested",
    "raw",
    "a b",
    "select",
    "user",
    "статус",
    "current_date",
    "map",
    "split",
]

ALLOWED = (
    "op in ('now or never', 'todays', 'epoch')",
    "op = 'D'",
    "price IS NULL",
    "op IN ('D', 'X') AND NOT (price > -1.5e3 OR price<-1)",
    "op <=> 'D' or op != 'x' || 'y' and op <> ''",
    "`a b` = 'it''s' or `a b` like '%\\\\_x' escape '!' or op rlike '^[dD]'",
    "upper(trim(op)) in ('DELETE', 'D')",
    "coalesce(nested.op, attrs['op'], tags[0]) = \"D\"",
    "case when op = 'D' then true else false end",
    "cast(price as decimal(10, 2)) > 0BD and price::int between 1 and 2L",
    "at >= timestamp '2026-11-01 00:00:00' and at < date_add(date'2026-11-01', 1) + interval 1 day",
    "year(at) = 2026 and extract(year from at) = 2026 and dateadd(day, 1, at) is not null",
    "op is not distinct from 'D' and (op, price) in (('D', 1D))",
    "get_json_object(raw, '$.op') = 'd'",
    "array_contains(array('D', 'X'), op) and size(tags) > 0 and element_at(tags, 1) = 'x'",
    "op like any ('D%', 'X%')",
    "user = 'x' and `select` = 1 and `статус` = 'D' and current_date = 1",
    "(price - 1) > - - 1",
    "OP = 'D'",
    "op = '-- no comment' and op = '/* none */' and op = 'a; reflect(1) {fn x} :p ?'",
    "x'1F' = cast(op as binary)",
    "replace(trim(op), ' ', '') = 'D' and concat(op, raw) = 'x'",
    "concat_ws('-', op, raw) = 'D-x'",
    "op rlike '(?i)^(d|del|delete)\\\\s*$' and rlike(raw, '^[^,|*]+(,[a-z]{2})?$') = true and `split` = 'x' and split = 'x'",
    "case when op not rlike '^\\\\(x\\\\)+$' then true end and split(op, ',')[0] = 'D'",
)
REFUSED = {
    "op = 'today'": "time of the query",
    "to_date('Now') = op": "time of the query",
    "cast(' tomorrow' as date) > op": "time of the query",
    'op < "yesterday Europe/Berlin"': "time of the query",
    "reflect('java.lang.System', 'getProperty', 'user.home') = 'x'": "reflect",
    "java_method('java.lang.Runtime', 'x') = 'x'": "java_method",
    "try_reflect('a', 'b') = 'x'": "try_reflect",
    "`reflect`('java.lang.System', 'exit', 0) = 'x'": "reflect",
    "`builtin`.`reflect`('a') = 'x'": "reflect",
    "system.builtin.reflect('a') = 'x'": "reflect",
    "op.reflect('a') = 'x'": "reflect",
    "reflect /* a */ ('a') = 'x'": "/",
    "reflect -- a\n('a') = 'x'": "--",
    "reflect\n\t('a') = 'x'": "reflect",
    "REFLECT('a') = 'x'": "reflect",
    "IDENTIFIER('reflect')('a') = 'x'": "identifier",
    "\"reflect\"('a') = 1": "reflect",
    "{fn reflect('a')} = 'x'": "{",
    "my_udf(op)": "my_udf",
    "rand() > 0.5": "rand",
    "randn(1) > 0": "randn",
    "uuid() = op": "uuid",
    "monotonically_increasing_id() > 1": "monotonically_increasing_id",
    "input_file_name() = 'x'": "input_file_name",
    "_metadata.file_path = 'x'": "_metadata",
    "current_timestamp > at": "current_timestamp",
    "now() > at": "now",
    "unix_timestamp() > 1": "unix_timestamp",
    "at > timestamp 'now'": "now",
    "at > date'\\u0074oday'": "DATE",
    "at > date' Tomorrow '": "Tomorrow",
    "session_user() = 'x'": "session_user",
    "session_user = 'x'": "session_user",
    "op in (select op from t)": "SELECT",
    "op in (\u017felect op)": "holds",
    "exists(select 1)": "exists",
    "op in (table t)": "TABLE",
    "op in (from t)": "FROM",
    "op in (values 1)": "VALUES",
    "(map op using 'touch /tmp/x') = 1": "MAP",
    "(reduce op using 'touch /tmp/x') = 1": "REDUCE",
    "exists(with t as (select 1) select 2)": "exists",
    "count(*) > 1": "count",
    "max(price) = price": "max",
    "row_number() over (order by op) = 1": "row_number",
    "price over w > 1": "OVER",
    "raise_error('x') is null": "raise_error",
    "assert_true(true) is null": "assert_true",
    "ai_query('m', op) = 'x'": "ai_query",
    "http_request('GET', 'http://x') = 'x'": "http_request",
    "read_files('/etc') is null": "read_files",
    "exists(tags, x -> x = 'a')": "exists",
    "filter(tags, x -> true) = tags": "->",
    "op -> op": "->",
    "size(sequence(1, 1000000000)) > 1": "sequence",
    "length(repeat('a', 1000000000)) > 1": "repeat",
    "length(space(1000000000)) > 1": "space",
    "length(lpad('a', 1000000000, 'a')) > 1": "lpad",
    "length(hex(hex(op))) > 1": "hex",
    "length(replace(replace(op, 'a', 'aa'), 'a', 'aa')) > 1": "more than once",
    f"length(replace(op, 'a', '{'a' * 65}')) > 1": "more than 64 characters",
    "length(replace(op, 'a', raw)) > 1": "argument 3 that is no literal",
    "length(replace(op, 'a', 'b' 'c')) > 1": "argument 3 that is no literal",
    f"length(replace(concat({', '.join(['op'] * 100)}), 'a', 'aa')) > 1": "more than 256 characters",
    "length(concat_ws(op, op, op)) > 1": "argument 1 that is no literal",
    "length(concat_ws('aa', concat_ws('aa', op, op), op)) > 1": "more than once",
    "length(replace(concat_ws('aa', op, op), 'a', 'aa')) > 1": "more than once",
    "op rlike '^(a+)+$'": "behind a group",
    "op not rlike '(a|aa)+'": "behind a group",
    "op regexp '((a*)b){2,}'": "behind a group",
    "rlike(op, '(?:a+){9}')": "behind a group",
    "regexp_like(op, '(a?)*')": "behind a group",
    "regexp_extract(op, '(a+)+', 1) = 'a'": "behind a group",
    "regexp_instr(op, '([(]a+)+') > 0": "behind a group",
    "regexp(op, '(a+)\\\\++(b+)+')": "behind a group",
    "size(split(op, '(a+)+')) > 1": "behind a group",
    "op rlike '\\u0028a+)+'": "plain letters",
    "op rlike '\\050a+)+'": "plain letters",
    "op rlike '(a+\\\\Q)\\\\E)+'": "plain letters",
    "op rlike '(?x)(a+) +'": "plain letters",
    "op rlike '(a+[])])+'": "plain letters",
    "op rlike '(a+[b[c])]])+'": "class in a class",
    f"op rlike '{'a?' * 30}{'a' * 30}'": "more than 3",
    f"op rlike '{'(a|a)' * 30}b'": "more than 3",
    "op rlike 'a*a*a*a*b'": "more than 3",
    f"op rlike '{'a' * 201}'": "at most 200",
    "op rlike raw": "no literal",
    "op rlike '(a+' || ')+'": "no literal",
    "op rlike '(a+' ')+'": "no literal",
    "op rlike ('(a+)+')": "no literal",
    "regexp_like(op, concat('(a+', ')+'))": "no literal",
    "op = :p": ":",
    "op = ?": "?",
    "op = 'D'; drop table t": ";",
    "op = 'D') or (1 = 1": r"\)",
    "(op = 'D'": "closing",
    "op = 'D": "'D",
    "op = r'\\' and reflect('a')": "holds",
    "op = R'a'": "raw string",
    "op = 1a": "1a",
    "op = $x": r"\$",
    "op = @@x": "@",
    "payload:op = 'D'": ":",
    "op => 'D'": "=>",
    "статус = 'D'": "holds",
    "op = 'D' or op\u0131 = 1": "holds",
    "op\u00a0= 'D'": "holds",
    "op\0 = 'D'": "holds",
    "": "empty",
    "nothing = 1": "nothing",
    "dat = 'D'": "'dat'",
    "(" * 2000 + "op" + ")" * 2000: "nests",
    "op = 'D' or " * 5000 + "true": "characters",
}


@pytest.mark.parametrize("condition", ALLOWED)
def test_conditions_of_the_row_alone_are_taken(condition: str) -> None:
    check_condition(condition, COLUMNS)
    check_condition(condition, None if "current_date" not in condition else COLUMNS)


@pytest.mark.parametrize("condition", REFUSED)
def test_all_else_is_refused_and_named(condition: str) -> None:
    with pytest.raises(
        InvalidInputError, match=REFUSED[condition].replace("?", r"\?").replace("{", r"\{")
    ):
        check_condition(condition, COLUMNS)
    assert len(condition) <= MOST_CHARACTERS or "characters" in REFUSED[condition]


def test_a_table_is_not_made_with_another_condition() -> None:
    with pytest.raises(InvalidInputError, match=r"calls reflect\(\), .* deterministic"):
        plan_spec(
            SCHEMA,
            TableLayout(
                keys=["sku"], delta="at", deletes="reflect('java.lang.System', 'exit', 0) = 1"
            ),
        )
