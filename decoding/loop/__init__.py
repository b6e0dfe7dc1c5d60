"""The algorithm: draft, check, accept, go on; draft sources, acceptance rules, the clock."""
