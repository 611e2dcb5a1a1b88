"""A model made of an exported program: it traces, and needs torch no more."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import FloatArray
from policysearch.importers.calls import emit_calls
from policysearch.importers.program import Call, Program
from policysearch.importers.tracer import FILLED, Selection, Tracer
from policysearch.nn.model import (
    OWN_LOSS,
    WRITTEN,
    Attention,
    Input,
    Model,
    ParameterSpec,
    Traced,
    emit_arrays,
)
from policysearch.ops.builder import Builder
from policysearch.values import InputError

ATTENTION = "aten.scaled_dot_product_attention"
"""What torch has several kernels for."""

RECURRENT = ("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu")
"""What has a share that is dropped between its layers, of this place among the arguments."""
DROPPED_SHARE = 5

Draw = Callable[[int], Mapping[str, FloatArray]]
"""Makes the initial arrays of a seed anew."""


@dataclass(frozen=True, eq=False, repr=False)
class TorchModel(Model):
    """A net of torch: the `program` of its forward pass and the arrays it starts from.

    `specs` and `kept` are its parameters and running statistics, `initial` their values by name.
    `draw` gives other values for another seed; without it every seed starts from `initial`.
    `types` are the classes of its modules, by name. `source` is the module or its maker; it stays
    behind where the model is sent. `evaluation` is the program of evaluation where that draws or
    moves buffers otherwise than training. `attention` is how `scaled_dot_product_attention` runs.
    """

    name: str
    inputs: tuple[Input, ...]
    program: Program
    specs: tuple[ParameterSpec, ...]
    kept: tuple[ParameterSpec, ...]
    initial: Mapping[str, FloatArray]
    fixed: Mapping[str, FloatArray] = field(default_factory=dict)
    loss: str = ""
    labels: str = ""
    draw: Draw | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    source: Any = field(default=None, repr=False)
    evaluation: Program | None = None
    attention: Attention = WRITTEN
    optimizer_state: Mapping[str, FloatArray] = field(default_factory=dict)
    updates_done: int = 0

    def __getstate__(self) -> dict[str, Any]:
        own = {row.name: getattr(self, row.name) for row in fields(self)}
        return {**own, "source": None}  # what is cached is no part of the value

    @cached_property
    def constants(self) -> Mapping[str, FloatArray]:  # type: ignore[override]
        filled = {name: np.array(value, np.float32) for value, name in FILLED.items()}
        return MappingProxyType({**self.fixed, **filled})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex of the program, the parameters' names and the initial values."""
        description = (self.inputs, self.program, self.specs, self.kept, self.loss, self.labels)
        digest = hashlib.sha256(repr(description).encode())
        digest.update(repr(self.evaluation).encode() if self.evaluation else b"")
        digest.update(self.attention.encode() if self.attention != WRITTEN else b"")
        digest.update(f"after {self.updates_done}".encode() if self.updates_done else b"")
        for values in (self.initial, self.fixed, self.optimizer_state):
            for name, array in sorted(values.items()):
                digest.update(name.encode() + array.tobytes())
        return digest.hexdigest()

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        """The modules that compute something, named as `named_modules()`, in the order they do."""
        b = Builder()
        self.trace(b, self._sources(b, 2), training=True)
        return tuple(dict.fromkeys(node.layer for node in b.nodes if node.role == "fprop"))

    @cached_property
    def layer_types(self) -> Mapping[str, str]:
        """The class of each layer's module, by its name: "Conv2d", "LayerNorm"."""
        return MappingProxyType({n: self.types[n] for n in self.layer_names if n in self.types})

    @property
    def calls_attention(self) -> bool:
        return any(call.op == ATTENTION for call in self.program.calls)

    def with_attention(self, kind: Attention) -> Model:
        if not self.calls_attention:
            return super().with_attention(kind)
        return replace(self, attention=kind)

    def without_inner_masks(self) -> Model:
        calls = tuple(map(_without_masks, self.program.calls))
        if calls == self.program.calls:
            return self
        return replace(self, program=replace(self.program, calls=calls))

    def _sources(self, b: Builder, batch_size: int) -> dict[str, int]:
        fed = self.emit_inputs(b, batch_size) | emit_arrays(b, self.specs)
        return fed | self.emit_statistics(b)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        return self._owned_parameters

    @cached_property
    def _owned_parameters(self) -> tuple[ParameterSpec, ...]:
        """The parameters as those of layers: of the modules that hold them or, where these compute
        nothing (`out_proj` of a MultiheadAttention), of the layers that read them.
        """
        b = Builder()
        fed = self._sources(b, 2)
        self.trace(b, fed, training=True)
        readers = b.graph({}).readers()
        specs = []
        for spec in self.specs:
            layers = [name for name in spec.owners if name in self.layer_names]
            layers = layers or [n.layer for n in readers[fed[spec.name]] if n.role == "fprop"]
            first, *others = dict.fromkeys(layers or spec.owners)
            specs.append(replace(spec, layer=first, others=tuple(others)))
        return tuple(specs)

    def statistics(self) -> tuple[ParameterSpec, ...]:
        return self.kept

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Return the arrays of the module as it was given, or drawn anew by its own maker."""
        if self.draw is None:
            return dict(self.initial)
        return dict(self.draw(int(rng.integers(2**31))))

    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        """Emit the forward pass. InputError names every call that cannot be imported."""
        batch = b.shape(fed[self.inputs[0].name])[0]
        program = self.program if training else (self.evaluation or self.program)
        tracer = Tracer(b, program, fed, batch, training, self.attention)
        read = {*program.results, *(name for _, name in program.updated)}
        if faults := emit_calls(tracer, program.calls, read):
            raise InputError(f"model {self.name}: cannot be imported: {faults}")
        with b.scope(role="fprop"):
            return self._program_trace(tracer, program)

    def _program_trace(self, tracer: Tracer, program: Program) -> Traced:
        results = [tracer.value(name) for name in program.results]
        updated = {full: tracer.full(tracer.value(name)) for full, name in program.updated}
        moved = {**tracer.statistics, **updated} if tracer.training else {}
        statistics = tuple(moved.items())
        if self.loss != OWN_LOSS:
            if isinstance(results[0], Selection):
                given = f"model {self.name}, result: as many rows as a mask chooses"
                raise InputError(f"{given}; keep all rows, or choose by torch.where")
            return Traced(tracer.full(results[0]), None, statistics)
        scalars = [x for x in results if x.shape == ()]
        others = [x for x in results if x.shape != () and not isinstance(x, Selection)]
        if not scalars:
            raise InputError(f"model {self.name}: no scalar result; expected its own loss")
        loss = tracer.full(scalars[0])
        return Traced(tracer.full(others[0]) if others else loss, loss, statistics)


def _without_masks(call: Call) -> Call:
    """Return a call of attention or of recurrent layers that drops nothing inside."""
    if call.op == ATTENTION:
        kept = tuple((name, x) for name, x in call.options if name != "dropout_p")
        dropped = dict(call.options).get("dropout_p")
        return replace(call, options=kept) if dropped else call
    if call.op in RECURRENT and call.arguments[DROPPED_SHARE]:
        given = call.arguments
        changed = (*given[:DROPPED_SHARE], 0.0, *given[DROPPED_SHARE + 1 :])
        return replace(call, arguments=changed)
    return call
