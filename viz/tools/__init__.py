"""Tools: a Space's folder and its rehearsal, the recordings of the lessons, and the browser of rehearsal and tests."""
