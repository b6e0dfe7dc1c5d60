"""The algorithm: draft, verify, accept, repeat; draft sources, acceptance rules, the clock."""
