"""Random programs of statements and other jobs, compared with a model after every step."""

import pytest

# So that a comparison that fails shows both sides, here as in the modules of tests
pytest.register_assert_rewrite("tests.programs.program", "tests.programs.compare")
