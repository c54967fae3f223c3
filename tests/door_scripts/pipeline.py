"""A DeepSpeed pipeline of one stage, whose engine takes its updates in train_batch."""

import json
import sys

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from tiny_model import make_batches, make_model

deepspeed.init_distributed()
config = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
          "stalloc": json.loads(sys.argv[1])}
net = PipelineModule(layers=list(make_model()), num_stages=1, loss_fn=torch.nn.functional.mse_loss)
engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
batches = iter([(batch, batch[:, :1]) for batch in make_batches(20)])
losses = [float(engine.train_batch(data_iter=batches)) for _ in range(10)]
print(json.dumps({"losses": losses}))
