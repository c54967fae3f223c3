"""A Trainer script that has never heard of us, but for --callback."""

import argparse
import itertools
import json
import tempfile

import torch
from tiny_model import NUM_FEATURES, make_batches
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--deepspeed", default=None)
parser.add_argument("--deepspeed-dict", default=None)
parser.add_argument("--callback", action="store_true")
parser.add_argument("--phases", action="store_true", help="evaluate and save every few steps")
parser.add_argument("--lengths", type=int, nargs="+", help="tokens in the first batches, and in all that follow the last one named")
own = parser.parse_args()

torch.manual_seed(0)
tokens = [(batch[0].abs() * 10).long() % 64 for batch in make_batches(4 * own.steps)]
data = [{"input_ids": row, "labels": row} for row in tokens]
num_batches = itertools.count()


def collate(rows):
    length = own.lengths[min(next(num_batches), len(own.lengths) - 1)]
    return {name: torch.stack([row[name][:length] for row in rows]) for name in rows[0]}


phases = dict(save_strategy="no")
if own.phases:
    phases = dict(eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=3, save_strategy="steps", save_steps=6)
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=own.steps, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    logging_steps=2, **phases, report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=1e-3,
    deepspeed=json.loads(own.deepspeed_dict) if own.deepspeed_dict else own.deepspeed,
)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=NUM_FEATURES))
callbacks = None
if own.callback:
    from stalloc_accel import StallocCallback
    callbacks = [StallocCallback()]
trainer = Trainer(model=model, args=args, train_dataset=data, eval_dataset=data[:10], callbacks=callbacks,
                  data_collator=collate if own.lengths else None)
trainer.train()
if trainer.is_world_process_zero():
    print(json.dumps({"log_history": trainer.state.log_history,
                      "callbacks": [type(callback).__name__ for callback in trainer.callback_handler.callbacks]}))
