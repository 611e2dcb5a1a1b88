"""The commands of the command line, a file for those that belong together."""
