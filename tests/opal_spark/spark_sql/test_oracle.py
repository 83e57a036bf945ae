"""Spark's own parser as the oracle of ours.

Every statement that Spark accepts must have the same kind, tables and clauses here, and every
slice, read by Spark alone, must be the expression of its plan. Parsing runs no query.
"""

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from opal_lake.errors import InvalidInputError
from opal_lake.sql.lexer import tokens
from opal_lake.sql.parse import parse, split_script
from opal_lake.sql.statements import (
    Delete,
    InsertInto,
    InsertOverwrite,
    InsertReplaceWhere,
    Merge,
    Query,
    Slice,
    Statement,
    Update,
)
from tests.opal_spark.spark_sql.oracle_texts import Texts

pytestmark = [pytest.mark.spark, pytest.mark.slow(90)]

# What Delta and Iceberg document, in words of our own
DOCUMENTED = [
    "UPDATE default.events SET kind = 'click' WHERE kind = 'clck'",
    "UPDATE c.db.t AS o SET o.total = o.total * 1.1, note = upper(note) WHERE o.day > '2026'",
    "UPDATE c.db.t SET state = 'gone' WHERE EXISTS (SELECT 1 FROM c.db.r WHERE r.id = t.id)",
    "DELETE FROM c.db.t WHERE at >= '2026-05-01 00:00:00' AND at < '2026-06-01 00:00:00'",
    "DELETE FROM c.db.t WHERE total < (SELECT min(total) FROM c.db.r)",
    "DELETE FROM c.db.t AS a WHERE EXISTS (SELECT id FROM c.db.r AS b WHERE a.id = b.id)",
    (
        "MERGE INTO c.db.t t USING (SELECT * FROM s) u ON t.id = u.id"
        " WHEN MATCHED AND u.op = 'd' THEN DELETE"
        " WHEN MATCHED AND t.n IS NULL AND u.op = 'i' THEN UPDATE SET t.n = 0"
        " WHEN NOT MATCHED THEN INSERT *"
    ),
    (
        "MERGE INTO people USING updates ON people.id = updates.id WHEN MATCHED THEN UPDATE SET *"
        " WHEN NOT MATCHED THEN INSERT (id, name) VALUES (updates.id, updates.name)"
        " WHEN NOT MATCHED BY SOURCE AND people.at >= current_date() - INTERVAL '5' DAY THEN"
        " UPDATE SET people.state = 'inactive'"
    ),
    "MERGE WITH SCHEMA EVOLUTION INTO t USING s ON s.k = t.k WHEN NOT MATCHED THEN INSERT *",
    "INSERT INTO c.db.t VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO c.db.t SELECT * FROM s",
    "INSERT INTO t BY NAME SELECT 1 AS b, 2 AS a",
    "INSERT OVERWRITE c.db.t PARTITION (level = 'INFO') SELECT id, at FROM s",
    "INSERT OVERWRITE c.db.t SELECT id, first(level) FROM s GROUP BY id",
    "INSERT INTO t REPLACE WHERE day >= '2026-01-01' SELECT * FROM s",
    "SELECT * FROM c.db.t VERSION AS OF 10963874102873",
    "SELECT * FROM c.db.t FOR SYSTEM_VERSION AS OF 10963874102873",
    "SELECT * FROM c.db.t TIMESTAMP AS OF '1986-10-26 01:21:00'",
    "SELECT * FROM c.db.t FOR SYSTEM_TIME AS OF '1986-10-26 01:21:00'",
    "SELECT * FROM c.db.t VERSION AS OF 'a-branch' x JOIN u ON x.id = u.id",
    "SELECT count(*) - (SELECT count(*) FROM t TIMESTAMP AS OF date_sub(current_date(), 7)) FROM t",
]
# Texts that Spark reads in a way that surprises
SURPRISING = [
    "SELECT a from FROM t",
    "SELECT FROM t",
    "SELECT * FROM t where",
    "SELECT * FROM t where WHERE where = 1",
    "SELECT a FROM FROM t",
    "SELECT * FROM stream s",
    "SELECT /*+ broadcast(t) */ DISTINCT a FROM t",
    "SELECT values, table, select FROM t",
    "SELECT not FROM t",
    "SELECT t.select, t.join FROM t JOIN u ON t.join = u.on",
    "UPDATE t set SET set = set WHERE where",
    "DELETE FROM t WHERE WHERE where",
    "SELECT case, when, end FROM t",
    "SELECT CASE case WHEN when THEN then ELSE else END FROM t",
    "SELECT * FROM a LEFT SEMI JOIN b LEFT ANTI JOIN c NATURAL JOIN d",
    "SELECT * FROM a PIVOT (sum(x) FOR y IN (1, 2)) p, b",
    "SELECT * FROM (a) x, ((b) y JOIN c)",
    "SELECT ((SELECT 1 FROM a) UNION (SELECT 2 FROM b))",
    "SELECT ſelect FROM t",
    "SELECT '\\'' FROM t -- FROM u",
    "SELECT map(1, 2), a > b, array(1) FROM t",
    "SELECT $$x$$",
    "WITH a AS (WITH a AS (SELECT * FROM a) SELECT * FROM a) SELECT * FROM a, (SELECT * FROM a) b",
    "WITH a AS (SELECT 1), b AS (SELECT * FROM a, c) SELECT * FROM b WHERE x IN (TABLE d)",
    "MERGE INTO t USING s ON when WHEN MATCHED AND then THEN UPDATE SET when = then, a = when",
    "INSERT INTO t (SELECT * FROM s)",
    "INSERT INTO t VALUES (1), ((SELECT max(x) FROM s)), (')')",
    "INSERT INTO t REPLACE WHERE EXISTS (SELECT 1 FROM s) (SELECT 1 FROM u)",
    "FROM a |> AGGREGATE sum(x) GROUP BY y |> EXTEND z AS w |> LEFT JOIN b ON true |> AS q",
]
GENERATED = 400


@pytest.fixture(scope="module")
def oracle(spark: Any) -> "Oracle":
    return Oracle(spark)


class Oracle:
    """Spark's parser, and what its plans say."""

    def __init__(self, spark: Any) -> None:
        # Only tests use this private object; the product never asks the session's JVM
        self.parser = spark._jsparkSession.sessionState().sqlParser()

    def plan(self, text: str) -> Any:
        """Return the plan of a text, or None if Spark refuses it."""
        return self._try(self.parser.parsePlan, text)

    def expression(self, text: str) -> str | None:
        tree = self._try(self.parser.parseExpression, text)
        return None if tree is None else plain(tree)

    def _try(self, call: Callable[[str], Any], text: str) -> Any:
        try:
            return call(text)
        except (Py4JJavaError, PySparkException):
            return None

    def relations(self, plan: Any, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
        """Yield the tables of a plan, without names of WITH."""
        kind = plan.getClass().getSimpleName()
        if kind == "UnresolvedRelation":
            parts = tuple(items(plan.multipartIdentifier()))
            if not (len(parts) == 1 and parts[0].lower() in hidden):
                yield ".".join(parts)
        elif kind == "RelationTimeTravel":
            yield from self.relations(plan.relation(), hidden)
        elif kind == "UnresolvedWith":
            for pair in items(plan.cteRelations()):
                yield from self.relations(pair._2(), hidden)
                hidden |= {pair._1().lower()}
            yield from self.relations(plan.child(), hidden)
            return
        for child in items(plan.children()):
            yield from self.relations(child, hidden)
        for subquery in items(plan.subqueries()):
            yield from self.relations(subquery, hidden)


def items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.size()))


def plain(tree: Any) -> str:
    """Return the text of an expression without the numbers that Spark gives to names."""
    return re.sub(r"#\d+L?", "", tree.toString())


def option(value: Any) -> str | None:
    return plain(value.get()) if value.isDefined() else None


def kind_of(plan: Any) -> type[Statement]:
    names = {
        "DeleteFromTable": Delete,
        "MergeIntoTable": Merge,
        "OverwriteByExpression": InsertReplaceWhere,
        "UpdateTable": Update,
    }
    name = plan.getClass().getSimpleName()
    if name == "InsertIntoStatement":
        return InsertOverwrite if plan.overwrite() else InsertInto
    return names.get(name, Query)


def expressions_of(plan: Any) -> list[str | None]:
    """Return every expression of a plan of a statement, in the order of the text."""
    kind = kind_of(plan)
    if kind is Update:
        assigned = [plain(item.value()) for item in items(plan.assignments())]
        return [*assigned, option(plan.condition())]
    if kind is Delete:
        return [plain(plan.condition())]
    if kind is InsertReplaceWhere:
        return [plain(plan.deleteExpr())]
    if kind is not Merge:
        return []
    found_expressions: list[str | None] = [plain(plan.mergeCondition())]
    for actions in (
        plan.matchedActions(),
        plan.notMatchedActions(),
        plan.notMatchedBySourceActions(),
    ):
        for action in items(actions):
            name = action.getClass().getSimpleName()
            found_expressions += [name, option(action.condition())]
            if name in ("UpdateAction", "InsertAction"):
                found_expressions += [plain(item.value()) for item in items(action.assignments())]
    return found_expressions


ACTIONS = {
    "update": "UpdateAction",
    "update_all": "UpdateStarAction",
    "delete": "DeleteAction",
    "insert": "InsertAction",
    "insert_all": "InsertStarAction",
}


def slices_of(statement: Statement, oracle: Oracle) -> list[str | None]:
    """Return the same as `expressions_of`, from our slices, read by Spark."""

    def read(piece: Slice | None) -> str | None:
        return None if piece is None else oracle.expression(piece.text)

    if isinstance(statement, Update):
        values = [read(item.value) for item in statement.assignments]
        return [*values, read(statement.where)]
    if isinstance(statement, Delete):
        return ["true" if statement.where is None else read(statement.where)]
    if isinstance(statement, InsertReplaceWhere):
        return [read(statement.where)]
    if not isinstance(statement, Merge):
        return []
    read_expressions = [read(statement.on)]
    for clause in statement.clauses:
        read_expressions += [ACTIONS[clause.action], read(clause.condition)]
        read_expressions += [read(item.value) for item in clause.assignments]
        read_expressions += [read(value) for value in clause.values]
    return read_expressions


def tables_of(statement: Statement) -> list[str]:
    names = [".".join(reference.table.parts) for reference in statement.references]
    if isinstance(statement, Update | Delete | Merge):
        names.append(".".join(statement.target.table.parts))
    elif isinstance(statement, InsertInto | InsertReplaceWhere):
        names.append(".".join(statement.table.parts))
    return sorted(names)


def difference(oracle: Oracle, text: str) -> str | None:
    """Return how our reading of a text differs from Spark's; None if it does not."""
    plan = oracle.plan(text)
    if plan is None:
        return None
    try:
        statement = parse(text)
    except InvalidInputError as error:
        return f"Spark reads it, but {error}"
    if type(statement) is not kind_of(plan):
        return f"{type(statement).__name__}, but in Spark {plan.getClass().getSimpleName()}"
    tables = sorted(oracle.relations(plan))
    if isinstance(statement, InsertInto | InsertReplaceWhere) and len(tables_of(statement)) > len(
        tables
    ):
        # The target of an insert is not a child of the plan
        tables = sorted([*tables, *oracle.relations(plan.table())])
    if tables_of(statement) != tables:
        return f"tables {tables_of(statement)}, but in Spark {tables}"
    ours, theirs = slices_of(statement, oracle), expressions_of(plan)
    return None if ours == theirs else f"{ours}, but in Spark {theirs}"


@pytest.mark.parametrize("text", [*DOCUMENTED, *SURPRISING])
def test_statement_is_read_as_spark_reads_it(oracle: Oracle, text: str) -> None:
    assert difference(oracle, text) is None


@pytest.mark.parametrize("text", DOCUMENTED)
def test_documented_statement_is_one_for_spark(oracle: Oracle, text: str) -> None:
    assert oracle.plan(text) is not None


def test_generated_statements_are_read_as_spark_reads_them(oracle: Oracle) -> None:
    texts = Texts(seed=40)
    accepted = 0
    differences = []
    for _ in range(GENERATED):
        text = texts.statement()
        accepted += oracle.plan(text) is not None
        found_difference = difference(oracle, text)
        if found_difference is not None:
            differences.append((text, found_difference))
    assert not differences[:3]
    assert accepted > 300


def test_tokens_are_those_of_the_lexer_of_spark(spark: Any) -> None:
    jvm = spark._jvm
    rules = jvm.org.apache.spark.sql.catalyst.parser
    fragments = (
        "' \" ` \\ -- /* */ /*+ r' R\" 1 2.5 . e E+ 5e3 1. L BD d _ a select MAP < > >> >>> = ! |"
    )
    fragments += " :: : ? é ſ ß ² ٣ 😀 { @ // file:// s3a:// '' `` ( ) ; - +"
    chance = random.Random(39)
    compared = 0
    for _ in range(1500):
        pieces = [chance.choice([*fragments.split(), " ", "\n"]) for _ in range(8)]
        text = "".join(pieces[: chance.randint(1, 8)])
        try:
            ours = [(token.start, token.end) for token in tokens(text)[:-1]]
        except InvalidInputError:
            continue
        stream = jvm.org.antlr.v4.runtime.CharStreams.fromString(text)
        lexer = rules.SqlBaseLexer(rules.UpperCaseCharStream(stream))
        lexer.removeErrorListeners()
        theirs = [
            (token.getStartIndex(), token.getStopIndex() + 1)
            for token in lexer.getAllTokens()
            if token.getChannel() == 0
        ]
        assert ours == theirs, text
        compared += 1
    assert compared > 700


def test_soup_of_tokens_raises_only_invalid_input() -> None:
    chance = random.Random(39)
    source = " ".join([*DOCUMENTED, *SURPRISING])
    pieces = [source[token.start : token.end] for token in tokens(source)[:-1]]
    pieces += ["(", ")", "[", "]", ",", ".", ";", "'", '"', "`", "/*", "*/", "--", "\n", "{", "$$"]
    starts = ("", "MERGE INTO t USING s ON ", "CREATE TABLE t (", "ALTER TABLE t ", "SELECT ")
    for _ in range(5000):
        words = [chance.choice(pieces) for _ in range(chance.randint(0, 25))]
        text = chance.choice(starts) + " ".join(words)
        assert refusals(text) <= {"SQL, line "}


def refusals(text: str) -> set[str]:
    """Return how the errors of a text begin; any other error fails the test."""
    beginnings = set()
    for read in (parse, split_script):
        try:
            read(text)
        except InvalidInputError as error:
            beginnings.add(str(error)[: len("SQL, line ")])
    return beginnings
