"""The algorithm: draft, check, accept, repeat; draft sources, acceptance rules, the clock."""
