"""Model pairs, and one causal LM with a rewindable cache behind several engines."""
