import sys

if __name__ == "__main__":
    try:
        from .cli import main

        main()
    except KeyboardInterrupt:  # while modules were imported, which takes a second: later the commands see to it
        sys.exit(130)
