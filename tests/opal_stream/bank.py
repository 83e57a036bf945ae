"""A PostgreSQL table that several connections change at random, by transactions of all kinds."""

import os
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2.errors import DeadlockDetected, UniqueViolation

from tests.fixtures_postgres import USER, Postgres
from tests.opal_stream.pgoutput import Decoding, Row

SETTINGS = ("wal_level=logical", "fsync=off", "deadlock_timeout=20ms", "max_wal_size=4GB")


def _balance(dice: random.Random) -> str:
    if dice.random() < 0.2:
        cents = dice.randrange(-(10**14) + 1, 10**14)
    else:
        cents = dice.randrange(-(10**5), 10**5)
    return f"{cents}e-2"


REGIONS = ("north", "south", "östlich", "", "a'b\"c\\d")
CREATE = """
CREATE TABLE accounts (
    region text, id bigint, name text, balance numeric(14,2), rate numeric, opened timestamptz,
    seen timestamp, born date, active boolean,
    score double precision, visits int, note text, PRIMARY KEY (region, id));
CREATE INDEX ON accounts (id);
ALTER TABLE accounts REPLICA IDENTITY FULL;
ALTER TABLE accounts ALTER COLUMN note SET STORAGE EXTERNAL;
CREATE PUBLICATION bank FOR TABLE accounts
"""
VALUES = {
    "name": lambda dice: dice.choice(
        ["", "Zoë", "line\nbreak", "tab\t", "null", "\\N", f"n{dice.randrange(10**6)}"]
    ),
    "balance": _balance,
    "rate": lambda dice: dice.choice(
        ["0", "-1.5", "1e3", f"{dice.randrange(10**12)}e-{dice.randrange(11)}"]
    ),
    "opened": lambda dice: (
        f"{dice.randrange(1900, 2100)}-0{dice.randrange(1, 10)}-11 "
        f"01:02:03.{dice.randrange(10**6):06}+05"
    ),
    "seen": lambda dice: (
        f"{dice.randrange(1900, 2100)}-1{dice.randrange(3)}-28 23:59:59.{dice.randrange(10**6):06}"
    ),
    "born": lambda dice: f"{dice.randrange(1850, 2100)}-02-{dice.randrange(1, 29)}",
    "active": lambda dice: dice.choice([True, False]),
    "score": lambda dice: dice.choice([0.1, -0.0, 1e300, 5e-324, dice.random()]),
    "visits": lambda dice: dice.randrange(-(2**31), 2**31),
    "note": lambda dice: (
        "x" * dice.randrange(2_500, 3_000)
        if dice.random() < 0.02
        else f"note {dice.randrange(100)}"
    ),
}


def connect(server: Postgres) -> Any:
    connection = psycopg2.connect(
        host="127.0.0.1", port=server.port, user=USER, password=server.password, dbname="postgres"
    )
    with connection.cursor() as cursor:
        cursor.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET extra_float_digits = 3")
    connection.commit()
    return connection


@dataclass(slots=True, kw_only=True)
class Customer:
    """A connection of its own, which makes transactions until it is told to stop."""

    server: Postgres
    dice: random.Random
    keys: int
    did: Counter[str] = field(default_factory=Counter)

    def run(self, transactions: int) -> None:
        connection = connect(self.server)
        try:
            for _ in range(transactions):
                self._transaction(connection)
        finally:
            connection.close()

    def _transaction(self, connection: Any) -> None:
        """Change rows in a transaction, which is sometimes rolled back.

        It is by choice, or because two transactions changed the same row. Sometimes all of its
        changes are of one row.
        """
        key = self._key() if self.dice.random() < 0.1 else None
        try:
            with connection.cursor() as cursor:
                statements = [
                    self._statement(key or self._key()) for _ in range(self.dice.randrange(1, 60))
                ]
                cursor.execute(b";".join(cursor.mogrify(*statement) for statement in statements))
        except (DeadlockDetected, UniqueViolation) as error:
            self.did[type(error).__name__] += 1
            connection.rollback()
            return
        if self.dice.random() < 0.05:
            self.did["rollback"] += 1
            connection.rollback()
        else:
            connection.commit()

    def _key(self) -> tuple[str, int]:
        return self.dice.choice(REGIONS), self.dice.randrange(self.keys)

    def _statement(self, key: tuple[str, int]) -> tuple[str, Sequence[Any]]:
        chance = self.dice.random()
        if chance < 0.35:
            names, values = self._values(len(VALUES))
            places = ", ".join(["%s"] * (2 + len(names)))
            new = ", ".join(f"{name} = excluded.{name}" for name in names)
            named = ", ".join(["region", "id", *names])
            insert = f"INSERT INTO accounts ({named}) VALUES ({places})"
            return f"{insert} ON CONFLICT (region, id) DO UPDATE SET {new}", [*key, *values]
        if chance < 0.80:
            names, values = self._values(self.dice.randrange(1, 4))
            new = ", ".join(f"{name} = %s" for name in names)
            return f"UPDATE accounts SET {new} WHERE region = %s AND id = %s", [*values, *key]
        if chance < 0.82:
            return "UPDATE accounts SET region = %s, id = %s WHERE region = %s AND id = %s", [
                *self._key(),
                *key,
            ]
        if chance < 0.83:
            first = self.dice.randrange(self.keys)
            return "UPDATE accounts SET visits = visits / 2 WHERE id BETWEEN %s AND %s", [
                first,
                first + 5,
            ]
        return "DELETE FROM accounts WHERE region = %s AND id = %s", key

    def _values(self, count: int) -> tuple[Sequence[str], list[Any]]:
        names = self.dice.sample([*VALUES], count)
        return names, [
            None if self.dice.random() < 0.15 else VALUES[name](self.dice) for name in names
        ]


class Bank:
    """The table, its changes and the rows that it has."""

    def __init__(self, server: Postgres, keys: int) -> None:
        seed = os.environ.get("OPAL_SEED", "17")
        self._own = connect(server)
        self._own.autocommit = True
        self._cursor = self._own.cursor()
        self._cursor.execute(CREATE)
        self.customers = [
            Customer(server=server, dice=random.Random(f"{seed} bank {n}"), keys=keys)
            for n in range(2)
        ]
        self.customers[0].run(20)  # these rows are there before anybody listens
        self.decoding = Decoding(cursor=self._cursor, slot="bank", publication="bank")

    def begin(self) -> tuple[list[Row], int]:
        """Return since when changes are kept, and the rows until then, as text."""
        lsn = self.decoding.begin()
        self._cursor.execute("SELECT * FROM accounts LIMIT 0")
        names = [column.name for column in self._cursor.description]
        texts = ", ".join(
            "CASE active WHEN true THEN 't' WHEN false THEN 'f' END"
            if name == "active"
            else f"{name}::text"
            for name in names
        )
        self._cursor.execute(f"SELECT {texts} FROM accounts")
        return [dict(zip(names, row, strict=True)) for row in self._cursor], lsn

    def change(self, transactions: int) -> None:
        threads = [
            threading.Thread(target=customer.run, args=[transactions])
            for customer in self.customers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def rows(self) -> list[dict[str, Any]]:
        self._cursor.execute("SELECT * FROM accounts")
        names = [column.name for column in self._cursor.description]
        return [dict(zip(names, row, strict=True)) for row in self._cursor]
