"""Tokens: quotes, comments, numbers and symbols. `test_oracle` compares them with Spark's own."""

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.sql.lexer import string_value, tokens


def pieces(text: str) -> list[str]:
    return [text[token.start : token.end] for token in tokens(text)[:-1]]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("'it''s' 'b'", ["'it''s'", "'b'"]),
        (r"'it\'s' x", [r"'it\'s'", "x"]),
        ('"a""b" c', ['"a""b"', "c"]),
        (r"r'a\' b", [r"r'a\'", "b"]),
        ("`a``b`.c", ["`a``b`", ".", "c"]),
        ("a--b\nc", ["a", "c"]),
        ("a--b\\\nc\nd", ["a", "d"]),
        ("a/*b/*c*/d*/e", ["a", "e"]),
        ("a /* ' */ b", ["a", "b"]),
        ("SELECT /*+ hint(t) */ a", ["SELECT", "/*+", "hint", "(", "t", ")", "*/", "a"]),
        ("1.5 1. .5 1e5 1.5e-3 12L 3.0BD", ["1.5", "1.", ".5", "1e5", "1.5e-3", "12L", "3.0BD"]),
        ("t.1a 1.2a", ["t", ".", "1a", "1", ".", "2a"]),
        ("a<=>b!=c||d|>e", ["a", "<=>", "b", "!=", "c", "||", "d", "|>", "e"]),
        (
            "map<a,array<b>> x>>1",
            ["map", "<", "a", ",", "array", "<", "b", ">", ">", "x", ">>", "1"],
        ),
        (":a ? {b} @", [":", "a", "?", "{", "b", "}", "@"]),
        ("$$a;b$$ c", ["$$a;b$$", "c"]),
        ("a\u00a0b\u2003c", ["a", "b", "c"]),
        ("file://a/b.c d", ["file://a/b.c", "d"]),
    ],
)
def test_text_is_cut_where_spark_cuts_it(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


@pytest.mark.parametrize(
    "text, value",
    [
        ("'it''s'", "it's"),
        ('"say ""x"" "', 'say "x" '),
        (r"'a\tb\n\\'", "a\tb\n\\"),
        (r"'\%\_\q'", r"\%\_q"),
        (r"'\u00e9\101\U0001F600'", "éA😀"),
        (r"r'\n'", r"\n"),
        (r"'\u12'", "u12"),
        ("$a$x$$y$a$", "x$$y"),
    ],
)
def test_value_of_a_string_has_its_escapes_resolved(text: str, value: str) -> None:
    assert string_value(text, tokens(text)[0]) == value


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "SELECT\n 'a",
            r"line 2, column 2: the string that begins here has no end; close it with '",
        ),
        ('a = "b', r'line 1, column 5: the string .* close it with "'),
        ("a = `b", r"line 1, column 5: the name that begins here has no end; close it with `"),
        ("a\n/* /* */", r"line 2, column 1: the comment that begins here has no end"),
        ("/*/", r"line 1, column 1: the comment"),
    ],
)
def test_quote_without_end_is_an_error_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        tokens(text)


def test_keywords_are_upper_case_as_java_makes_them() -> None:
    # Java knows an upper case of the long s, and none of one character for the sharp s
    assert [token.value for token in tokens("ſelect groß")[:-1]] == ["SELECT", "GROß"]


def test_rows_of_literals_are_one_token_after_values() -> None:
    text = "INSERT INTO t VALUES (1, ')'), ('(', null), (f(1), 2)"
    joined = [text[token.start : token.end] for token in tokens(text, join_rows=True)]
    assert joined[4] == "(1, ')'), ('(', null)"
    assert joined[5:8] == [",", "(", "f"]
