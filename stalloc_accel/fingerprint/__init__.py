"""What a plan belongs to: the fields of a run that decide its allocations, and their digest.

Floors: key (the type), then model, hosts and launch (where fields come from). Nothing here imports torch or a host; it
reads what the caller hands in.
"""

from stalloc_accel.fingerprint.hosts import accelerate_fields, deepspeed_fields, trainer_fields
from stalloc_accel.fingerprint.key import Key, explain, make_key
from stalloc_accel.fingerprint.launch import config_fields, launch_key, rank_fields, version_fields
from stalloc_accel.fingerprint.model import model_fields

__all__ = [
    "Key", "accelerate_fields", "config_fields", "deepspeed_fields", "explain", "launch_key", "make_key",
    "model_fields", "rank_fields", "trainer_fields", "version_fields",
]
