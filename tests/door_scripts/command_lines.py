"""Reads Accelerate's command lines and configuration files, without launching: many spellings in one process.

Arguments: the configuration file, and the same in JSON. Prints what each spelling gave.
"""

import argparse
import json
import os
import shutil
import sys

import torch  # noqa: F401 - as accelerate's own command does first
from accelerate.commands import accelerate_cli
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.config.update import update_config
from accelerate.commands.launch import launch_command_parser
from accelerate.commands.utils import CustomArgumentParser

yaml_file, json_file = sys.argv[1:3]
answers = {}

for spelling in (["--config_file", yaml_file], ["--config-file", yaml_file], [f"--config_file={yaml_file}"],
                 ["--config", yaml_file], [f"--config={yaml_file}"]):
    for tail in (["train.py", "--config", "mine.yaml"], ["--num_processes", "2", "train.py", "--lr", "1"]):
        args = launch_command_parser().parse_args([*spelling, *tail])
        answers[" ".join([*spelling, *tail])] = [args.config_file == yaml_file, args.training_script_args]

for command in ("launch", "env", "test", "config", "config update", "config default"):
    sys.argv = ["accelerate", *command.split(), "--config", yaml_file, *(["train.py"] if command == "launch" else [])]
    parsed = []
    original = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = (
        lambda self, *a, parsed=parsed, original=original, **k: parsed.append(original(self)) or argparse.Namespace()
    )
    try:
        accelerate_cli.main()
    except SystemExit:
        pass
    argparse.ArgumentParser.parse_args = original
    answers[command] = yaml_file in (getattr(parsed[0], "config_file", None), getattr(parsed[0], "save_location", None))

own = CustomArgumentParser()
own.add_argument("--config_file")
own.add_argument("--config")
both = own.parse_args(["--config", "a", "--config_file", "b"])
answers["a parser's own --config"] = [both.config, both.config_file]

tokens = []
for path in (yaml_file, json_file):
    os.environ.pop("STALLOC_CONFIG", None)
    config = load_config_from_file(path)
    tokens.append(os.environ.get("STALLOC_CONFIG"))
    answers[f"attribute of {os.path.basename(path)}"] = "stalloc" in vars(config)
    copy = "copy_of_" + os.path.basename(path)
    shutil.copy(path, copy)
    answers[f"updated {copy}"] = update_config(argparse.Namespace(config_file=copy))
answers["tokens"] = tokens
print(json.dumps(answers))
