"""Lives of tables in which every operation may run inside any store call of another one."""

import pytest

# So that a comparison that fails shows both sides, here as in the modules of tests
pytest.register_assert_rewrite("tests.raced.judge", "tests.raced.life")
