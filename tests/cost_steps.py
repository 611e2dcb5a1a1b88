"""Steps and products that the tests of the cost model price."""

from __future__ import annotations

from functools import lru_cache

from policysearch.graph import Graph
from policysearch.nn.chain import Chain
from policysearch.nn.models import mlp
from policysearch.ops.builder import Builder
from policysearch.ops.dense import matmul
from policysearch.ops.source import data, parameter
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step

WIDE = mlp((2048, 2048, 2048, 2048, 512), "relu")


def product(m: int, n: int, k: int, format: str = "float16", out: str = "float16") -> Graph:
    b = Builder()
    x = b.emit(data, attrs={"shape": (m, k)}, format=format)
    w = b.emit(parameter, attrs={"shape": (n, k)}, format=format)
    y = b.emit(matmul, x, w, attrs={"transpose_b": True}, format=out)
    return b.graph({"y": y})


@lru_cache(maxsize=512)
def step(model: Chain, policy: str, batch: int, optimizer: str = "momentum") -> Graph:
    kind = Optimizer(optimizer)
    graph = trace_step(model, "softmax_cross_entropy", kind, batch)
    return apply_policy(graph, preset(policy, model.layer_names))
