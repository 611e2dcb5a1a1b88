"""Adapters of training loops, in an exported torch file: each is one line of the user's script."""

from __future__ import annotations

LOOPS = '''\


def use_in_accelerate(accelerator, device_type="cpu"):
    """Have an Accelerator scale losses as the policy says; call it before `prepare`.

    accelerate unscales gradients before clipping only where it made the scaler for float16 itself.
    With mixed_precision="bf16" or "no"; "fp16" is refused, for it would scale twice.
    """
    if accelerator.mixed_precision not in ("no", "bf16"):
        given = accelerator.mixed_precision
        raise ValueError(f"accelerator: mixed_precision {given!r}; expected 'no' or 'bf16'")
    if accelerator._optimizers:
        raise ValueError("accelerator: has optimizers already; expected this call before prepare")
    scaler = make_grad_scaler(device_type)
    accelerator.scaler = scaler if scaler.is_enabled() else None

    def unscale_gradients(optimizer=None):
        if accelerator.scaler is None or not accelerator.sync_gradients:
            return
        given = accelerator._optimizers if optimizer is None else optimizer
        for each in given if isinstance(given, (list, tuple)) else [given]:
            while hasattr(each, "optimizer"):
                each = each.optimizer
            accelerator.scaler.unscale_(each)

    accelerator.unscale_gradients = unscale_gradients
    return accelerator


class PolicyTrainer:
    """For the Trainer of transformers: `class Mine(PolicyTrainer, transformers.Trainer): pass`.

    The module it is given is one that `apply_policy` was called with: `Mine(apply_policy(model))`.
    """

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        use_in_accelerate(self.accelerator, self.args.device.type)

    def train(self, *args, **kwargs):
        if self.model is not None and not _applied(self.model):
            raise ValueError("PolicyTrainer: no policy on its model; expected apply_policy(model)")
        return super().train(*args, **kwargs)


def lightning_plugin(device_type="cpu", package="lightning.pytorch"):
    """Return a plugin: `Trainer(plugins=[lightning_plugin()])`, of that package of Lightning.

    It applies the policy to the net inside the LightningModule, whose own losses stay float32, and
    scales as the policy says. It refuses a LightningModule whose own submodules are the layers.
    """
    import importlib

    precision = importlib.import_module(package + ".plugins.precision")

    class PolicyPrecision(precision.MixedPrecision):
        def __init__(self):
            scaler = make_grad_scaler(device_type)
            super().__init__("16-mixed", device_type, scaler=scaler)

        def convert_module(self, module):
            if not _applied(module):
                apply_policy(_net_inside(module), device_type=device_type)
            return module

        def forward_context(self):
            return contextlib.nullcontext()

    return PolicyPrecision()


def _net_inside(module):
    """Return the outermost submodule whose own names are those of the layers."""
    layers = [name.rstrip(".") for name in LAYERS]
    for name, part in module.named_modules():
        names = _names(part)
        if name and all(layer in names for layer in layers):
            return part
    raise ValueError(
        f"{type(module).__name__}: its own submodules are the layers of the policy, or not there; "
        "expected the net as one submodule, say self.net, so that losses beside it stay float32"
    )
'''
"""They import what they adapt where they are called: the file needs torch alone."""
