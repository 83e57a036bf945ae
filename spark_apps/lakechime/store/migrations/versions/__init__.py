"""One module a step. A step never changes once it was released."""
