"""Device rows and the models of step time and peak memory over a graph."""
