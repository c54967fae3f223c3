"""A training loop with DeepSpeed; the ZeRO stage is in the JSON file.

deepspeed recipes/deepspeed_zero.py --deepspeed_config recipes/zero2.json
deepspeed recipes/deepspeed_zero.py --deepspeed_config recipes/zero3.json
"""

from __future__ import annotations

import deepspeed
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import tokens_for
from losses import LossFile
from models import llama
from options import parse


def train(args) -> None:
    deepspeed.init_distributed()
    model = llama(args.size)
    engine, _, _, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=[p for p in model.parameters() if p.requires_grad]
    )
    accumulation = engine.gradient_accumulation_steps()
    data = tokens_for(model, args, args.steps * accumulation * engine.world_size)
    loader = DataLoader(data, batch_size=args.batch, sampler=DistributedSampler(data, shuffle=False))
    losses = LossFile(args.losses)
    for batch in loader:
        loss = engine(**{name: tokens.to(engine.device) for name, tokens in batch.items()}).loss
        engine.backward(loss)
        engine.step()
        losses.add(loss.item())
    torch.distributed.destroy_process_group()


def add_options(parser) -> None:
    parser.add_argument("--local_rank", type=int, default=0)
    deepspeed.add_config_arguments(parser)


if __name__ == "__main__":
    train(parse(__doc__, add=add_options))
