"""The pages of the documentation: what they show is what happens."""
