"""A Hugging Face script as a user writes it: GPT-2 or BERT, AdamW, clipping, warm-up, linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

TOKENS, LENGTH, EXAMPLES = 37, 12, 96


class Text(torch.utils.data.Dataset[Any]):
    """Sentences of a small grammar: each token follows from the last one, mostly."""

    def __init__(self, classes: bool) -> None:
        rng = np.random.default_rng(0)
        rows = np.zeros((EXAMPLES, LENGTH), np.int64)
        rows[:, 0] = rng.integers(TOKENS, size=EXAMPLES)
        for place in range(1, LENGTH):
            noise = rng.integers(3, size=EXAMPLES)
            rows[:, place] = (5 * rows[:, place - 1] + noise) % TOKENS
        self.rows, self.classes = rows, classes

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = self.rows[index]
        if self.classes:
            mask = np.arange(LENGTH) < LENGTH - index % 3
            return {"input_ids": ids, "attention_mask": mask.astype(int), "labels": ids[0] % 3}
        labels = np.where(np.arange(LENGTH) < LENGTH - index % 4, ids, -100)
        return {"input_ids": ids, "labels": labels}


def model(kind: str) -> Any:
    torch.manual_seed(0)
    none = 0.0
    if kind == "gpt2":
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), none)
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
        return GPT2LMHeadModel(GPT2Config(vocab_size=TOKENS, **sizes, **drops))
    bert = BertConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=none,
        attention_probs_dropout_prob=none,
        num_labels=3,
    )
    return BertForSequenceClassification(bert)


def trainer(kind: str, folder: Path, **options: Any) -> Trainer:
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_steps=20,
        learning_rate=5e-3,
        weight_decay=0.1,
        max_grad_norm=0.5,
        warmup_steps=5,
        lr_scheduler_type="linear",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    return Trainer(model=model(kind), args=args, train_dataset=Text(classes=kind == "bert"))
