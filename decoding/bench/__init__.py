"""Comparison with other engines: their speed on the same prompts, and transformers' own greedy text."""
