"""The text of an exported torch file, one subject a file; a dollar sign marks what is filled in."""
