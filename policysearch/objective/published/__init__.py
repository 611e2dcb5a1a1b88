"""Published trainings priced by the graphs of their networks, and how far prices are off."""
