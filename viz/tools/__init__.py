"""Tools: a Space's folder and its rehearsal, and the browser of rehearsal and tests."""
