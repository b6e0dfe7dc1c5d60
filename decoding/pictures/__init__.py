"""Pictures that the program draws itself: scenes as data, and their drawing. No torch."""
