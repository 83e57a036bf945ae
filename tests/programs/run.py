"""Runs programs by their seeds; an error names the seed and the steps of its program."""

from collections import Counter

from tests.programs.compare import compare_all, compare_step
from tests.programs.engines import Engine
from tests.programs.program import Program

STEPS = 14
WEIGHTS = {
    "ingest": 12,
    "metagen": 6,
    "update": 14,
    "delete": 8,
    "insert": 6,
    "merge": 18,
    "overwrite": 6,
    "drop_partition": 3,
    "replace": 6,
    "alter": 12,
    "misfit": 1,
    "compact": 4,
    "major": 1,
    "cluster": 3,
    "rebuild": 1,
    "restore": 5,
    "retain": 2,
    "savepoint": 2,
    "erase": 2,
    "repeat": 4,
    "reopen": 2,
    "properties": 1,
}


def run_program(seed: int, engine: Engine | None = None, steps: int = STEPS) -> Counter[str]:
    """Run one program; return how often each step was done."""
    program = Program(seed, engine)
    try:
        program.ingest()
        for _ in range(steps):
            name = program.random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
            program.steps.append(name)
            getattr(program, name)()
            program.happened[name] += 1
            compare_step(program)
        compare_all(program)
    except BaseException as error:
        error.add_note(f"OPAL_SEED={seed}; the steps were\n" + "\n".join(program.steps))
        raise
    return program.happened
