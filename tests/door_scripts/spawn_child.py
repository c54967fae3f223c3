"""Starts a child as a data loader with spawned workers does; both tell whether a session runs in them."""

import json
import multiprocessing
import sys

import torch


def has_session(_: int = 0) -> bool:
    sessions = sys.modules.get("stalloc_accel.session")
    return sessions is not None and sessions.current() is not None and torch.__version__ is not None


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(json.dumps({"child": pool.map(has_session, [0])[0], "parent": has_session()}))
