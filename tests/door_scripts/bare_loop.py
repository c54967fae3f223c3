"""A loop in plain torch that has never heard of us."""

import json
import sys

import torch
from tiny_model import make_batches, make_model

model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for batch in make_batches(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(json.dumps({"losses": losses}))
