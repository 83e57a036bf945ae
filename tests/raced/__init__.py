"""Lives of tables in which operations run inside store calls of others."""

import pytest

# So that a comparison that fails shows both sides, here as in the modules of tests
pytest.register_assert_rewrite("tests.raced.judge", "tests.raced.life")
