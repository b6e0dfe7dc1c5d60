"""Other engines on the same prompts, and texts against transformers' own."""
