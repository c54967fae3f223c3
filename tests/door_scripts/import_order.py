"""Imports the hosts in the order that the first argument says, and tells what was hooked and what was left behind."""

import json
import sys
from importlib.machinery import ModuleSpec

exec(sys.argv[1])  # noqa: S102 - the import statements of a user's script

import accelerate.accelerator  # noqa: E402
import accelerate.commands.config.config_args  # noqa: E402
import accelerate.commands.utils  # noqa: E402
import deepspeed.runtime.config  # noqa: E402
import deepspeed.runtime.engine  # noqa: E402
import deepspeed.runtime.pipe.engine  # noqa: E402
import torch  # noqa: E402
import transformers.trainer  # noqa: E402
from accelerate.utils.dataclasses import DeepSpeedPlugin  # noqa: E402
from accelerate.utils.deepspeed import HfDeepSpeedConfig  # noqa: E402

from stalloc_accel.integrations import import_hooks  # noqa: E402

methods = [
    accelerate.accelerator.Accelerator.__init__, accelerate.accelerator.Accelerator.prepare,
    accelerate.accelerator.AcceleratedOptimizer.step, HfDeepSpeedConfig.__init__,
    DeepSpeedPlugin.deepspeed_config_process, deepspeed.runtime.config.DeepSpeedConfig.__init__,
    deepspeed.DeepSpeedEngine.__init__, deepspeed.runtime.pipe.engine.PipelineEngine._take_model_step,
    accelerate.commands.utils.CustomArgumentParser.add_argument,
    accelerate.commands.config.config_args.BaseConfig.to_dict,
]
hosts = [module for name, module in list(sys.modules.items())
         if name.split(".")[0] in ("torch", "accelerate", "deepspeed", "transformers")
         and isinstance(getattr(module, "__spec__", None), ModuleSpec)]
print(json.dumps({
    "unhooked": [method.__qualname__ for method in methods if not hasattr(method, "_stalloc_wraps")],
    "foreign_specs": [module.__name__ for module in hosts if type(module.__spec__) is not ModuleSpec],
    "foreign_loaders": [module.__name__ for module in hosts
                        if "exec_module" in getattr(module.__spec__.loader, "__dict__", {})],
    "waiting": import_hooks.waiting_for(),
    "has_session": "stalloc_accel.session" in sys.modules,
    "default_callbacks": [callback.__name__ for callback in transformers.trainer.DEFAULT_CALLBACKS],
    "torch": torch.__version__,
}))
