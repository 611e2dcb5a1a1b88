"""The known failures of low-precision training, and what a diagnosis says of them."""
