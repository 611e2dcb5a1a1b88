"""The price of a step that is spread over devices: what each computes, holds and exchanges."""
