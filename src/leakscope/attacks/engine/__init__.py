"""The engine: the one loop over all attacks, its state, the forms of an evaluation, the plan of a run and the runner."""
