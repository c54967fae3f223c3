"""A loop without any training library: the one place where a script names us.

python recipes/bare_loop.py
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from data import tokens_for
from losses import LossFile
from models import llama
from options import parse

from stalloc_accel import Session, StallocConfig


def train(args) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with Session(StallocConfig(enabled=True)) as session:
        model = llama(args.size).to(device)
        session.attach(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data = tokens_for(model, args, args.steps)
        losses = LossFile(args.losses)
        for batch in DataLoader(data, batch_size=args.batch):
            loss = model(**{name: tokens.to(device) for name, tokens in batch.items()}).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
            losses.add(loss.item())


if __name__ == "__main__":
    train(parse(__doc__))
