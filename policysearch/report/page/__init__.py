"""The page of a study: one HTML file. A section, or a picture, is one file of this folder."""
