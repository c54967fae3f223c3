"""An Accelerate script that has never heard of us. Its own --config must stay its own."""

import argparse
import json
import os

import torch
from accelerate import Accelerator
from tiny_model import make_batches, make_model

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--config", default=None)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()

accelerator = Accelerator(cpu=args.cpu)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.cat(make_batches(args.steps * accelerator.num_processes))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for batch in loader:
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
if accelerator.is_main_process:
    print(json.dumps({"losses": losses, "config": args.config, "ranks": accelerator.num_processes,
                      "has_token": "STALLOC_CONFIG" in os.environ}))
