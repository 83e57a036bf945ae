"""Random queries and expressions over the table `@` of `build`."""

from random import Random

_NUMBERS = ["id", "at", "total", "size(tags)", "length(name)"]
_TEXTS = ["name", "'ax'", "'it''s'", "'{'", "'}{'", "upper(name)", "concat(name, '{}')"]
_DAYS = ["day", "DATE '2026-01-01'", "date_add(day, 1)", "to_date('2026-01-03', 'yyyy-MM-dd')"]


class Queries:
    """A source of random queries."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.depth = 0

    def query(self) -> str:
        """Return a query on the table."""
        made = self.dice.choice(
            [self._plain, self._joined, self._grouped, self._nested, self._with, self._union]
        )
        return made()

    def _name(self) -> str:
        return self.dice.choice(["@", "@ /* FROM x */", "@ -- '{'\n"])

    def _plain(self) -> str:
        alias = self.dice.choice(["", "o", "AS `o o`", "orders"])
        prefix = {"": "", "o": "o.", "AS `o o`": "`o o`.", "orders": "orders."}[alias]
        return (
            f"SELECT {prefix}id, {self.value()} AS v FROM {self._name()} {alias}"
            f" WHERE {self.condition()}"
        )

    def _joined(self) -> str:
        join = self.dice.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        return (
            f"SELECT a.id, b.id, b.name FROM {self._name()} a {join} {self._name()} b"
            f" ON a.day = b.day AND a.id {self.dice.choice(['<', '=', '<>'])} b.id"
            f" WHERE {self.dice.choice(['a.id', 'b.id'])}"
            f" {self.dice.choice(['> 2', 'IS NULL', '= 1'])}"
        )

    def _grouped(self) -> str:
        return (
            f"SELECT day, count(*), sum({self.number()}) FROM {self._name()}"
            f" WHERE {self.condition()} GROUP BY day"
            f" HAVING count(*) {self.dice.choice(['>', '='])} 1"
        )

    def _nested(self) -> str:
        return (
            f"SELECT id, (SELECT max({self.number()}) FROM {self._name()} WHERE {self.condition()})"
            f" FROM (SELECT * FROM {self._name()} WHERE {self.condition()}) x"
            f" WHERE {self.condition()}"
        )

    def _with(self) -> str:
        return (
            f"WITH x AS (SELECT id, name FROM {self._name()} WHERE {self.condition()}),"
            " orders AS (SELECT 1 AS id)"
            " SELECT x.* FROM x LEFT JOIN orders ON x.id = orders.id"
        )

    def _union(self) -> str:
        word = self.dice.choice(["UNION", "UNION ALL", "EXCEPT", "INTERSECT"])
        return (
            f"SELECT id FROM {self._name()} WHERE {self.condition()} {word}"
            f" SELECT at FROM {self._name()} WHERE {self.condition()}"
        )

    def number(self) -> str:
        dice = self.dice
        if dice.random() < 0.3:
            return f"({self.number()} {dice.choice(['+', '-', '*'])} {dice.randrange(4)})"
        return dice.choice(_NUMBERS)

    def value(self) -> str:
        return self.dice.choice([self.number(), self.dice.choice(_TEXTS), self.dice.choice(_DAYS)])

    def condition(self) -> str:
        """Return a condition on a row; of a subquery it reads the table again."""
        dice = self.dice
        kind = dice.randrange(9)
        if kind < 2 and self.depth < 3:
            self.depth += 1
            made = f"({self.condition()} {dice.choice(['AND', 'OR'])} {self.condition()})"
            self.depth -= 1
            return made
        if kind == 2:
            return f"NOT ({self.number()} > {dice.randrange(6)})"
        if kind == 3:
            return f"name {dice.choice(['=', '<>', '<=>', '<'])} {dice.choice(_TEXTS)}"
        if kind == 4:
            return f"day {dice.choice(['=', '>=', '<'])} {dice.choice(_DAYS)}"
        if kind == 5:
            return (
                f"id IN (SELECT at FROM {self._name()} WHERE total {dice.choice(['> 1', '< 1'])})"
            )
        if kind == 6:
            return f"id {dice.choice(['IN (1, 2, 5)', 'BETWEEN 2 AND 4', 'NOT IN (3)'])}"
        if kind == 7:
            return f"{dice.choice(['name', 'day', 'total'])} IS {dice.choice(['', 'NOT '])}NULL"
        return f"{self.number()} {dice.choice(['=', '<', '>='])} {dice.randrange(6)}"
