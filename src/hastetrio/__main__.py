"""`python -m hastetrio`."""

from hastetrio.cli import main

if __name__ == "__main__":
    main()
