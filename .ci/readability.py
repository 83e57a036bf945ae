"""Measure how dense the code of a folder is to read: `python .ci/readability.py [FOLDER ...]`.

The numbers are for a review: they rank modules and show a trend. No test fails because of them.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

PRODUCT = ("airflow_provider_opal", "spark_apps", "dags")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
PRAGMA = re.compile(r"#\s*(noqa|type:|ruff:|pragma|fmt:|!)")
# Words that are not this field's
DIALECT = re.compile(r"\b(?:is|are) no\b(?! longer| more)")
# How a first line begins that has neither a verb nor a noun at its start
WEAK_OPENING = re.compile(
    r"(?:Of|For|In|On|At|By|To|From|With|Without|Until|Unless|If|When|Where|While|Whether|What|Who|"
    r"How|Which|Why|That|As|Also|And|But|Or|Not|Only|So|Then|There|It|Its|They|Their|This|These|"
    r"Those|Is|Are|Was|Has|May|Can|Could|Else|Because|Before|After|Between|Though|Than|Never|"
    r"Always|Already|Still|Even|Just|Both|Either|Neither|Nothing|Like|Beside|Behind|Under|Above)\b"
)
MAX_COLUMNS = 100


@dataclass(kw_only=True)
class Counts:
    """Counts of a set of modules."""

    modules: int = 0
    code_lines: int = 0
    expression_nodes: int = 0
    ternaries: int = 0
    comprehensions: int = 0
    comments: int = 0
    docstrings: int = 0
    weak_docstrings: int = 0
    dialect: int = 0
    long_lines: int = 0

    def add(self, other: "Counts") -> None:
        """Add the counts of another module."""
        for field in fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)

    def per_thousand(self, count: int) -> float:
        """Return a count for each 1,000 lines of code."""
        return 1000 * count / max(self.code_lines, 1)

    @property
    def nodes_per_line(self) -> float:
        """Expression nodes, constants aside, for each line of code."""
        return self.expression_nodes / max(self.code_lines, 1)

    @property
    def weak_share(self) -> float:
        """The share of docstrings, in percent, that begin without a verb or a noun."""
        return 100 * self.weak_docstrings / max(self.docstrings, 1)


def counts_of(text: str) -> Counts:
    """Return the counts of the text of one module."""
    tree = ast.parse(text)
    counts = Counts(modules=1)
    docstring_lines = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            counts.expression_nodes += 1
        if isinstance(node, ast.IfExp):
            counts.ternaries += 1
        if isinstance(node, COMPREHENSIONS):
            counts.comprehensions += 1
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            docstring_lines.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
            counts.docstrings += 1
            counts.weak_docstrings += bool(WEAK_OPENING.match(ast.get_docstring(node) or ""))
    code_lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not PRAGMA.match(token.string):
            counts.comments += 1
        if token.type not in LAYOUT:
            code_lines.update(range(token.start[0], token.end[0] + 1))
    counts.code_lines = len(code_lines - docstring_lines)
    counts.dialect = len(DIALECT.findall(text))
    counts.long_lines = sum(len(line) > MAX_COLUMNS for line in text.splitlines())
    return counts


def modules_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the modules of folders, in their order."""
    for folder in folders:
        if folder.is_file():
            yield folder
        else:
            yield from sorted(folder.rglob("*.py"))


def report(counts: Counts, name: str) -> str:
    """Format one line of the report."""
    return (
        f"{counts.nodes_per_line:6.2f} {counts.per_thousand(counts.ternaries):6.1f} "
        f"{counts.per_thousand(counts.comprehensions):6.1f} "
        f"{counts.per_thousand(counts.comments):6.1f} {counts.weak_share:6.1f} "
        f"{counts.dialect:6d} {counts.long_lines:6d} {counts.code_lines:7d}  {name}"
    )


HEADER = """\
Expression nodes a line of code, constants aside; ternaries, comprehensions and comments in 1,000
lines of code; docstrings that begin without a verb or a noun, in percent; words of dialect and
lines over 100 columns, in all; lines of code.
 nodes  tern.  compr.  comm.  weak%  dial.  long>    code  where"""


def main(arguments: list[str]) -> None:
    """Print the measures of each folder, of their modules with --modules, and of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path(name) for name in PRODUCT])
    parser.add_argument("--modules", action="store_true", help="also print each module's numbers")
    options = parser.parse_args(arguments)
    print(HEADER)
    total = Counts()
    for folder in options.folders:
        subtotal = Counts()
        for path in modules_below([folder]):
            counts = counts_of(path.read_text(encoding="utf-8"))
            subtotal.add(counts)
            if options.modules:
                print(report(counts, str(path)))
        print(report(subtotal, str(folder)))
        total.add(subtotal)
    print(report(total, "all"))


if __name__ == "__main__":
    main(sys.argv[1:])
