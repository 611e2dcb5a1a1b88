"""Questions to a study that trains further policies, or none."""
