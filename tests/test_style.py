"""How code and prose read, as far as a test can see it: nesting, names, words and openings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("airflow_provider_opal", "dags", "docker", "docs", "spark_apps", ".ci")
MODULES = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
# Folders of tests without nesting and empty names
CLEAN_TESTS = (
    "bench",
    "chime",
    "contracts",
    "crash",
    "golden",
    "kit",
    "lakechime",
    "opal_lake",
    "programs",
    "raced",
    "scale",
    "second_reader",
    "soak",
)
TEST_MODULES = sorted(
    [
        *(ROOT / "tests").glob("*.py"),
        *(path for folder in CLEAN_TESTS for path in (ROOT / "tests" / folder).rglob("*.py")),
    ]
)
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "spark_apps").rglob("*.md"),
    ]
)

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# These say nothing of the value that they name
EMPTY_NAMES = {
    "found",
    "held",
    "kept",
    "one",
    "ours",
    "place",
    "taken",
    "tend",
    "there",
    "told",
}
# Each with the word of the field that stands for it
WORDS = {
    r"\b(is|are|was|were) no\b(?! longer| more| less)": "is not a",
    r"\bfor good\b": "permanently",
    r"\banew\b": "again",
    r"\bas ever\b": "as before",
    r"\bbeside\b": "next to",
    r"\b(tend|tends|tended|upkeep)\b": "maintain",
    r"\bMOST_": "MAX_",
    r"\b(tally|tallies)\b": "counts",
    r"\b(told(?![\"/])|tells?(?!\())\b": "report",
    r"\bmakes no sense\b": "what the value must be",
    r"\bcan go\b": "can be deleted",
    r"\bmay come no more\b": "is no longer accepted",
}
# A docstring's first line begins with a verb, or a noun and its article
WEAK_OPENINGS = re.compile(
    r"(Of|For|In|On|At|By|To|From|With|Without|Until|Unless|If|When|Where|While|Whether|What|Who|"
    r"How|Which|Why|That|As|Also|And|But|Or|Not|Only|So|Then|There|It|Its|They|Their|This|These|"
    r"Those|Is|Are|Was|Has|May|Can|Could|Else|Because|Before|After|Between|Though|Than|Never|"
    r"Always|Already|Still|Even|Just|Both|Either|Neither|Nothing|Like|Beside|Behind|Under|Above)\b"
)
MAX_SUMMARY = 80  # characters
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def nesting(tree: ast.AST) -> Iterator[str]:
    """Yield comprehensions in comprehensions, and ternaries in ternaries or in f-strings."""
    expressions = (node for node in ast.walk(tree) if isinstance(node, ast.expr))
    for node in expressions:
        inner = [child for child in ast.walk(node) if child is not node]
        if isinstance(node, COMPREHENSIONS) and any(isinstance(x, COMPREHENSIONS) for x in inner):
            yield f"{node.lineno} a comprehension holds another"
        if isinstance(node, ast.IfExp) and any(isinstance(x, ast.IfExp) for x in inner):
            yield f"{node.lineno} a conditional expression holds another"
        if isinstance(node, ast.JoinedStr) and any(isinstance(x, ast.IfExp) for x in inner):
            yield f"{node.lineno} a conditional expression stands in an f-string"


def empty_names(tree: ast.AST) -> Iterator[str]:
    """Yield names that are bound and say nothing of their value."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ClassDef(name=name):
                pass
            case _:
                continue
        if name.strip("_") in EMPTY_NAMES:
            yield f"{node.lineno} the name {name!r} says nothing of its value"


def words(text: str) -> Iterator[str]:
    """Yield words of no dialect but this project's, each with the field's own."""
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern, better in WORDS.items():
            match = re.search(pattern, line)
            if match:
                yield f"{number} {match[0]!r}: write {better!r}"


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield first lines that are long or begin without a verb or a noun."""
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED):
            continue
        first, _, _ = (ast.get_docstring(node) or "").partition("\n")
        line = node.body[0].lineno if first else 0
        if len(first) > MAX_SUMMARY and not isinstance(node, ast.Module):
            yield f"{line} the first line of a docstring has {len(first)} characters"
        if WEAK_OPENINGS.match(first):
            yield f"{line} a docstring begins with {first.partition(' ')[0]!r}"


def findings(path: Path) -> Iterator[str]:
    """Yield what breaks the style in a module or a page."""
    text = path.read_text(encoding="utf-8")
    yield from words(text)
    if path.suffix == ".py":
        tree = ast.parse(text)
        yield from nesting(tree)
        yield from empty_names(tree)
        yield from docstrings(tree)


def test_modules_keep_the_style() -> None:
    assert not [f"{relative(path)}:{text}" for path in MODULES for text in findings(path)]


def test_tests_nest_nothing_and_use_no_empty_name() -> None:
    faults: list[str] = []
    for path in TEST_MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        faults += [f"{relative(path)}:{text}" for text in (*nesting(tree), *empty_names(tree))]
    assert not faults


def test_pages_keep_the_words() -> None:
    assert not [f"{relative(path)}:{text}" for path in PAGES for text in findings(path)]


@pytest.mark.parametrize(
    "line",
    [
        "rows = [[x for x in row] for row in table]",
        "size = 1 if a else 2 if b else 3",
        'text = f"{1 if a else 2}"',
    ],
)
def test_nested_expressions_are_reported(line: str) -> None:
    assert list(nesting(ast.parse(line)))


def test_style_faults_of_words_names_and_docstrings_are_reported() -> None:
    assert list(words("x is no bound"))
    assert not list(words("x is no longer accepted"))
    assert list(empty_names(ast.parse("found = 1")))
    assert list(docstrings(ast.parse('def f():\n    """Of the first event."""')))
