"""What every page of this project is made of: modules of script and styles."""
