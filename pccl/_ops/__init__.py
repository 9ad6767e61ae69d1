"""Operations: a reduce or a collective from its arguments to the handle of its result."""
