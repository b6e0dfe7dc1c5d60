"""One causal language model with a rewindable key/value cache, and where models come from."""
