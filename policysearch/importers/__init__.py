"""The user's own net as a model: what torch.export says of it, as plain data that traces."""
