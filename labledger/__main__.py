"""`python -m labledger`."""

from labledger.cli.app import main

if __name__ == "__main__":
    main()
