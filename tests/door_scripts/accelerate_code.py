"""Asks for us in code and trains in several styles; prints how many steps the session saw of each, and the logs."""

import json

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from tiny_model import make_batches, make_model

from stalloc_accel import StallocPlugin
from stalloc_accel.session import current


class Notes(GeneralTracker):
    name = "notes"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self):
        super().__init__()
        self.values = {}

    @property
    def tracker(self):
        return self.values

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **kwargs):
        self.values.update(values)


def steps_of(style):
    before = current().num_steps if current() else 0
    style()
    return current().num_steps - before if current() else 0


def plain():
    train(model, optimizer, 8)


def accumulating():
    for batch in make_batches(8):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()


def two_optimizers():
    for batch in make_batches(8):
        for one in (optimizer, other):
            accelerator.backward(model(batch).square().mean() + critic(batch).square().mean())
            one.step()
            one.zero_grad()


def train(trained, stepped, count):
    for batch in make_batches(count):
        with accelerator.no_sync(trained):
            accelerator.gradient_state._set_sync_gradients(True)
            accelerator.backward(trained(batch).square().mean())
        stepped.step()
        stepped.zero_grad()


plugin = StallocPlugin(backend="cpu", profile_steps=3)
notes = Notes()
accelerator = Accelerator(kwargs_handlers=[plugin], log_with=notes, gradient_accumulation_steps=4, cpu=True)
accelerator.init_trackers("doors")
model, critic = make_model(), make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
other = torch.optim.AdamW(critic.parameters(), lr=1e-3)
model, critic, optimizer, other = accelerator.prepare(model, critic, optimizer, other)
counts = {"plain": steps_of(plain), "accumulating": steps_of(accumulating), "two optimizers": steps_of(two_optimizers)}
accelerator.log({"loss": 1.0})
print(json.dumps({"counts": counts, "notes": sorted(notes.values), "to_kwargs": plugin.to_kwargs(),
                  "same": accelerator.stalloc_plugin is plugin}))
