"""A raw DeepSpeed script that has never heard of us; the configuration is a file or, with --as-dict, a dict in code."""

import argparse
import json

import deepspeed
import torch
from tiny_model import make_batches, make_model

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--as-dict", default=None)
parser.add_argument("--local_rank", type=int, default=0)
deepspeed.add_config_arguments(parser)
args = parser.parse_args()

model = make_model()
config = json.loads(args.as_dict) if args.as_dict else None
engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(), config=config)
losses = []
for batch in make_batches(args.steps * engine.gradient_accumulation_steps()):
    loss = engine(batch.to(engine.get_data_types()[0])).float().square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
if torch.distributed.get_rank() == 0:
    print(json.dumps({"losses": losses, "ranks": torch.distributed.get_world_size()}))
