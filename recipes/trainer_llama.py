"""A Llama-style model with the Hugging Face Trainer.

accelerate launch --config_file recipes/trainer_llama.yaml recipes/trainer_llama.py
"""

from __future__ import annotations

import tempfile

import torch
from transformers import Trainer, TrainingArguments

from data import RandomTokens
from losses import LossFile
from models import llama
from options import parse


class RecordingTrainer(Trainer):
    """Writes the loss of every step in full precision; the Trainer's own log rounds it."""

    loss_file: LossFile

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.loss_file.add(loss.item())
        return loss


def train(args) -> None:
    model = llama(args.size)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = RecordingTrainer(
            model=model,
            args=TrainingArguments(
                output_dir=output_dir,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch,
                bf16=torch.cuda.is_available(),
                learning_rate=1e-3,
                full_determinism=True,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=RandomTokens(
                num_samples=args.batch * args.steps, length=args.length, vocab_size=model.config.vocab_size
            ),
        )
        trainer.loss_file = LossFile(args.losses)
        trainer.train()


if __name__ == "__main__":
    train(parse(__doc__))
