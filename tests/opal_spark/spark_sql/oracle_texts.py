"""SQL texts for the oracle: a seeded generator of statements that are hard to cut."""

import random

_LEAVES = (
    "a",
    "t.b",
    "`where`",
    "`a``b` . c",
    "'it''s'",
    r"'\'WHEN THEN'",
    '"say ""FROM x"""',
    r"r'C:\'",
    "'a' 'b'",
    "'{x} -- /*'",
    "1.5e3",
    "12L",
    "DATE '2026-11-29'",
    "INTERVAL '1' DAY",
    "null",
    "true",
    "x'1F'",
    "'\\u00e9 é 😀'",
    "m:path.to[0]",
    "arr[1]",
    "set",
    "matched",
    "offset",
    "t.from",
)
_RELATIONS = ("r1", "s.r2", "c.s.`r 3`", "R4", "opal.`s3a://lake/x`")
_SPACES = (" ", "\n", "\t", " /* FROM nowhere */ ", " -- WHEN 'x\n", " /* /* AND */ ; */ ")


class Texts:
    """Statements by chance, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def expression(self, depth: int = 2) -> str:
        leaf = self.random.choice(_LEAVES)
        if depth == 0:
            return leaf
        a, b, c = (self.expression(depth - 1) for _ in range(3))
        forms = (
            leaf,
            f"({a})",
            f"{a} = {b}",
            f"({a}) AND ({b}) OR NOT ({c})",
            f"({a}) IS NOT DISTINCT FROM ({b})",
            f"CASE WHEN {a} THEN {b} ELSE {c} END",
            f"CASE ({a}) WHEN {b} THEN {c} END",
            f"({a}) BETWEEN 1 AND 2",
            f"({a}) NOT IN ({b}, {c})",
            f"coalesce({a}, {b})",
            f"extract(YEAR FROM {a})",
            f"trim(BOTH 'x' FROM {a})",
            f"substring(s FROM 2 FOR 3) || {leaf}",
            "cast(a AS MAP<STRING, ARRAY<INT>>)",
            "a::decimal(10, 2)",
            f"transform(arr, x -> x + ({a}))",
            f"({a}) IN ({self.query(depth - 1)})",
            f"EXISTS ({self.query(depth - 1)})",
            f"({self.query(depth - 1)})",
            f"struct({a}, {b} AS from)",
        )
        return self.random.choice(forms)

    def relation(self, depth: int) -> str:
        name = self.random.choice(_RELATIONS)
        forms = [name, f"{name} x", f"{name} AS `join`", f"{name} VERSION AS OF 3"]
        forms += [f"{name} TIMESTAMP AS OF current_timestamp() - INTERVAL 1 DAY y", "range(3) z"]
        if depth:
            forms += [f"({self.query(depth - 1)}) q", f"{name} TABLESAMPLE (5 ROWS)"]
            forms += [f"{name} JOIN {self.relation(depth - 1)} ON {self.expression(depth - 1)}"]
            forms += [f"({name} CROSS JOIN r5)", f"{name}, {self.relation(depth - 1)}"]
            forms += [f"VALUES (1, {self.expression(0)}), (2, null) AS v(k, w)"]
        return self.random.choice(forms)

    def query(self, depth: int = 2) -> str:
        select = f"SELECT {self.expression(depth)} FROM {self.relation(depth)}"
        if depth == 0:
            return select
        forms = (
            select,
            f"{select} WHERE {self.expression(depth - 1)} ORDER BY 1",
            f"{select} GROUP BY a HAVING {self.expression(depth - 1)}",
            f"{select} UNION ALL {self.query(depth - 1)}",
            f"({select}) EXCEPT ({self.query(depth - 1)})",
            f"WITH r1 AS ({self.query(depth - 1)}), q(i) AS (SELECT * FROM r1) {select}, q",
            f"SELECT DISTINCT *, t.* FROM {self.relation(depth)} LIMIT 3",
            f"SELECT * EXCEPT (a) FROM {self.relation(depth)}",
            f"FROM {self.relation(depth)} SELECT a, b",
            f"FROM r1 |> WHERE {self.expression(depth - 1)} |> JOIN r5 ON true |> SELECT a",
            f"SELECT from FROM {self.relation(depth)}",
            f"SELECT a offset, b limit FROM {self.relation(depth)}",
            f"{select} LATERAL VIEW explode(arr) e AS g, h WHERE g > 1",
            "TABLE r1",
        )
        return self.random.choice(forms)

    def assignments(self) -> str:
        count = self.random.randint(1, 3)
        return ", ".join(f"c{number} = {self.expression()}" for number in range(count))

    def update(self) -> str:
        where = self.random.choice(("", f" WHERE {self.expression()}"))
        alias = self.random.choice(("", " t", " AS `set`", " matched"))
        return f"UPDATE db.target{alias} SET {self.assignments()}{where}"

    def delete(self) -> str:
        where = self.random.choice(("", f" WHERE {self.expression()}"))
        return f"DELETE FROM db.target{self.random.choice(('', ' t'))}{where}"

    def insert(self) -> str:
        head = self.random.choice(
            (
                "INSERT INTO db.target",
                "INSERT INTO TABLE db.target (a, `b c`)",
                "INSERT INTO db.target BY NAME",
                "INSERT OVERWRITE db.target",
                "INSERT OVERWRITE db.target PARTITION (d = '1', e)",
            )
        )
        return f"{head} {self.query()}"

    def replace_where(self) -> str:
        return f"INSERT INTO db.target REPLACE WHERE {self.expression()} {self.query()}"

    def merge(self) -> str:
        source = self.random.choice(("s.r2", "s.r2 AS s", f"({self.query()}) s"))
        on = self.expression()
        kinds = ("MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE")
        clauses = ""
        for kind in kinds:
            for number in range(self.random.randint(kind == "MATCHED", 2)):
                clauses += f" WHEN {kind} AND {self.expression()} AND {number} = 0"
                clauses += f" THEN {self._action(kind)}"
        return f"MERGE INTO db.target t USING {source} ON {on}{clauses}"

    def _action(self, kind: str) -> str:
        update = f"UPDATE SET {self.assignments()}"
        if kind == "NOT MATCHED":
            values = f"{self.expression()}, {self.expression()}"
            return self.random.choice(("INSERT *", f"INSERT (a, t.b) VALUES ({values})"))
        stars = ("UPDATE SET *",) if kind == "MATCHED" else ()
        return self.random.choice((update, "DELETE", *stars))

    def statement(self) -> str:
        make = self.random.choice(
            (self.merge, self.update, self.delete, self.insert, self.replace_where, self.query)
        )
        return self.disguised(make())

    def disguised(self, text: str) -> str:
        """Return a text with other spaces, comments and cases outside its quotes."""
        from opal_lake.sql.lexer import WORD, tokens

        parts = []
        position = 0
        for token in tokens(text):
            gap = text[position : token.start]
            parts.append(self.random.choice(_SPACES) if gap.strip("\n\t ") == "" != gap else gap)
            piece = text[token.start : token.end]
            is_word = token.kind == WORD
            parts.append(
                self.random.choice((piece, piece.lower(), piece.upper())) if is_word else piece
            )
            position = token.end
        return "".join(parts)
