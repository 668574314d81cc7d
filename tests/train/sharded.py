"""Training runs whose weights are sharded, on CPUs; each is resumed from its last step but one.

Usage: accelerate launch --config_file FILE sharded.py FOLDER JOB ..., with FOLDER/JOB for each.
accelerate shards on GPUs alone: it is told here that CPUs over gloo are such.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

# As a script its folder is on the path; as a part of the tests their folder is.
sys.path.insert(0, str(Path(__file__).parents[1]))

from marslm.train import arguments, objectives
from train import processes

JOBS: dict[str, dict[str, Any]] = {
    "mars": {},
    "ar": {"objective": "ar"},
    "lora": {"mode": "lora"},
    "mask-only": {"mode": "mask-only"},
    "accumulated": {"accumulation": 2},
}


def run(folder: Path, job: str) -> list[float]:
    """Train for five steps with a checkpoint after each; return the losses."""
    objectives._CHUNK = 1500  # a head that is sharded is used several times in a forward
    folder.mkdir(parents=True, exist_ok=True)
    return processes.run(folder, checkpoint_minutes=1e-9, **JOBS[job])


def resume(folder: Path, job: str) -> list[float]:
    """Forget the last checkpoint and the result, and go on; return the losses since."""
    if int(os.environ["RANK"]) == 0:
        (folder / "checkpoints" / "checkpoint-5" / "complete").unlink()
        (folder / "mars.json").unlink()
    torch.distributed.barrier()
    return processes.run(folder, resume=True, **JOBS[job])


def shard_on_cpus() -> None:
    """Have accelerate take CPUs for accelerators."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    setattr(PartialState, "_prepare_backend", lambda *_, **__: ("gloo", DistributedType.MULTI_GPU))  # noqa: B010
    real = arguments.TrainingArguments
    setattr(arguments, "TrainingArguments", lambda **given: real(**{**given, "use_cpu": False}))  # noqa: B010
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed.ops  # noqa: PLC0415

        # Compiled for minutes on first use; gloo does.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main(target: Path, jobs: list[str]) -> None:
    """Run `jobs`, writing the losses of each to its folder."""
    shard_on_cpus()
    for job in jobs:
        losses = {"whole": run(target / job, job), "resumed": resume(target / job, job)}
        if PartialState().is_main_process:
            (target / job / "curves.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
