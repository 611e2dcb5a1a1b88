"""A Lightning script as a user writes it: AdamW groups, clipping, warm-up, linear decay."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.nn import functional

from tests.script_rows import Rows


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.LayerNorm(24))
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x))


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Regressor()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = functional.cross_entropy(self(batch["x"]), batch["label"])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        decayed = [p for p in self.parameters() if p.ndim > 1]
        others = [p for p in self.parameters() if p.ndim == 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "lr": 0.01}]
        optimizer = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.1)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / 5, max(0.0, (total - step) / (total - 5)))
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Data(lightning.LightningDataModule):
    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=True)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def trainer(**options: Any) -> lightning.Trainer:
    return lightning.Trainer(
        max_steps=20,
        accumulate_grad_batches=4,
        gradient_clip_val=0.5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
