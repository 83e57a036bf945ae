"""When data-change events start something: the semantics, without a scheduler."""
