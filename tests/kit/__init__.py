"""The kit of table tests: a model, histories, failing stores and manual clocks."""

import pytest

# So that a comparison that fails shows both sides, here as in the modules of tests
pytest.register_assert_rewrite("tests.kit.replay")
