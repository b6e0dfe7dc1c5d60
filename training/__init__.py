"""Training of the embedded pair, step by step: ``python -m training --help``."""
