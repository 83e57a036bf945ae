"""What tests of a table need: a model that says what is right, random histories, stores that fail on purpose, clocks set by hand."""

import pytest

# So that a comparison that fails shows both sides, here as in the modules of tests
pytest.register_assert_rewrite("tests.kit.replay")
