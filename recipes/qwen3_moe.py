"""A Mixture-of-Experts model with Accelerate.

accelerate launch --config_file recipes/qwen3_moe.yaml recipes/qwen3_moe.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from data import tokens_for
from losses import LossFile
from models import qwen3_moe
from options import parse


def train(args) -> None:
    accelerator = Accelerator()
    model = qwen3_moe(args.size, args.experts)
    data = tokens_for(model, args, args.steps * accelerator.num_processes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=args.batch))
    losses = LossFile(args.losses)
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.add(loss.item())
    accelerator.end_training()


def add_options(parser) -> None:
    parser.add_argument("--experts", help="experts implementation; eager is the loop whose sizes follow the routing")


if __name__ == "__main__":
    train(parse(__doc__, add=add_options))
