"""Matrix products as an accumulator sums them."""
