"""Our lanes against other ways to decode the same models, interleaved on the same machine."""
