"""Policies of published runs: what a precision on a stack means for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from policysearch.cost.gemm import is_convolution
from policysearch.cost.stacks import Stack
from policysearch.graph import Graph
from policysearch.objective.published.stacks import Precision
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Policy
from policysearch.policy.presets import TF32, preset

AUTOCAST = {"float16": "torch.autocast.float16", "bfloat16": "torch.autocast.bfloat16"}
"""Presets of stacks that compute norms and softmax in float32."""

STORED_NARROW = {"float16": "apex.O2", "bfloat16": "torch.autocast.bfloat16"}
"""Presets of stacks that store all between layers in the narrow format."""


def policy_of(
    precision: Precision, stack: Stack, step: Graph, layers: Sequence[str], devices: int = 1
) -> Policy:
    """Return the policy of a run on some devices, data parallel; see `_policy`."""
    policy = _policy(precision, stack, step, layers)
    return policy if devices == 1 else replace(policy, parallel=Parallel(devices))


def _policy(precision: Precision, stack: Stack, step: Graph, layers: Sequence[str]) -> Policy:
    """Return the policy under which products, convolutions and activations are in these formats.

    Where all is in half precision it is apex's O3.
    """
    if precision.activations != "float32":
        if not precision.masters:
            return preset("apex.O3", layers)
        if stack.float32_norms:
            return preset(AUTOCAST[precision.activations], layers)
        return _stored_narrow(preset(STORED_NARROW[precision.activations], layers))
    narrow = {
        node.layer
        for node in step.nodes
        if node.op.kind == "gemm"
        and (precision.convolutions if is_convolution(node) else precision.products) == "tfloat32"
    }
    strict = {k: row for k, row in preset("float32", layers).layers if k not in narrow}
    return preset(TF32, layers).with_layers(strict)


def _stored_narrow(policy: Policy) -> Policy:
    """Return the policy with batch norm on narrow tensors, as libraries' kernels take them.

    Their statistics and weights are float32 within the kernel; no cast passes the memory.
    """
    return replace(
        policy,
        low_precision_ops=(*policy.low_precision_ops, "batch_norm"),
        fp32_ops=tuple(op for op in policy.fp32_ops if op != "batch_norm"),
        promote_ops=tuple(op for op in policy.promote_ops if op != "batch_norm"),
    )
