"""A training loop with Accelerate. The same script runs plain or over DeepSpeed: the YAML decides.

accelerate launch --config recipes/accelerate_plain.yaml recipes/accelerate_loop.py
accelerate launch --config recipes/accelerate_deepspeed.yaml recipes/accelerate_loop.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from data import tokens_for
from losses import LossFile
from models import llama
from options import parse


def train(args) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
    model = llama(args.size)
    data = tokens_for(model, args, args.steps * args.accumulation * accelerator.num_processes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=args.batch))
    losses = LossFile(args.losses)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.add(loss.item())
    accelerator.end_training()


if __name__ == "__main__":
    train(parse(__doc__, add=lambda p: p.add_argument("--accumulation", type=int, default=2)))
