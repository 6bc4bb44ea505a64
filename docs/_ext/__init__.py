"""What the site needs of Sphinx beyond the extensions there are."""
