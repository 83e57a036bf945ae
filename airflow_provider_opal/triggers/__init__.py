"""The same wait in the triggerer, without a worker."""
