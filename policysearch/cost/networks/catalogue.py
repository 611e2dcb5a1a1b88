"""All networks of the catalogue by the names that published rows use."""

from __future__ import annotations

from policysearch.cost.networks import (
    detectors,
    mobile,
    plain,
    recommenders,
    residual,
    sequences,
    small,
    transformers,
    volumes,
)
from policysearch.cost.networks.network import Network
from policysearch.values import InputError, near_miss

NETWORKS: dict[str, Network] = {
    name: network
    for family in (
        residual,
        plain,
        mobile,
        detectors,
        volumes,
        transformers,
        sequences,
        recommenders,
        small,
    )
    for name, network in family.NETWORKS.items()
}


def network_named(name: str) -> Network:
    """Return a network; InputError where there is none. Dashes and underscores are alike."""
    spelled = {key.replace("_", "-"): network for key, network in NETWORKS.items()}
    found = spelled.get(name.lower().replace("_", "-"))
    if found is None:
        raise InputError(f"unknown network {name!r}{near_miss(name, NETWORKS)}")
    return found
