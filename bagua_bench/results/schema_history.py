"""What each version of a record changed, and how to migrate every older version to the current one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from bagua_bench.configuration import facts
from bagua_bench.configuration.identity import identity

HISTORY = {
    1: "the first version",
    2: "`config.algo.about` and `config.task.about`: what is declared of the algorithm and the task; "
    "`config.algo.preset` is gone: what `released` stood for is written out in the algorithm's own "
    "options; `config.run.precision` is never missing; `code` hashes what a number depends on instead of all sources; "
    "`wrong` where an algorithm that averages in rounds applied none in the timed steps",
    3: "`config.run.channels`: how many buckets are under way at a time; 1 in older versions",
    4: "`result.sending`: size and number of the engine's buckets, and channels; `config.run.bucket_size` and "
    "`.channels` are null where they were left to the engine; `config.run.autotune` and `result.study`",
    5: "`config.compute.haste`: how many times quicker a run was than its times say; 1 in older versions",
    6: "`config.transport.chunk`: the largest part of a message that Bagua-Net gives one stream, missing where it is "
    "left to it; `streams_2p` and `chunk_2p` in the settings of `result.study`; `config.run.autotune.advised`: how "
    "many of them the simulator proposed; `config.task.sampler`, `.batching`, `.samples` and `.cache` of tasks on "
    "sequences and images; `result.imbalance` where batches differ in work",
    7: "`config.network.software_delay`: whether software adds the latency; in older versions it did in every "
    "simulation with latency of a cluster with `shaped`; `config.run.fused_optimizer`, missing where it is off; "
    "`config.task.sync_bn` of ResNet-50",
    8: "`config.run.elastic` and `result.elastic`: what an elastic run survived, missing in all others",
    9: "`config.run.elastic.regroup`: whether ranks that are left go on without a restart, false in older versions; "
    "`config.algo.about.regroups`; `config.algo.about.pairs` and `.unpaired` are gone: pairs take any number of ranks",
    10: "`disturbance`: what else kept the machine busy during a timed run, missing in older versions",
    11: "`config.network.sites` and `.wan`: groups of servers, and the line of each to the others; 1 in older "
    "versions; `network.measured.late`: the share of packets that the emulator passed on late, missing in older "
    "versions",
    12: "`result.step_seconds`: until the last rank has ended a step, from the end of the one before; in older "
    "versions the longest time that a rank took for it, whose sum is too long where ranks do not wait for each other; "
    "`config.run.trace` and `result.trace`: the file that shows what ranks did when, missing where it was not asked "
    "for",
    13: "`config.transport.streams` may be `auto`: Bagua-Net chooses their number by the round trip; "
    "`network.measured.busy`: the share of the cores' time that was used in the timed steps, missing in older versions",
    14: "`config.transport.wire`: what large sums of floats travel as, missing where that is as they are",
}
"""Versions and what each changed; results/README.md says the same."""
SCHEMA = max(HISTORY)
"""The version that is written."""

_NO_WAN = {"bandwidth": None, "latency": 0.0, "jitter": 0.0, "loss": 0.0}
_PRESET = {
    "peers": "all",
    "compress_single_rank": True,
    "codec": "minmax_uint8",
    "error_feedback": False,
    "bias_correction": "drift",
    "freeze_after": "warmup_minus_one",
    "weight_decay_stage": "warmup",
}
"""Values that `preset=released` of version 1 gave to those of these options that an algorithm had."""


def migrate(record: dict[str, Any]) -> dict[str, Any]:
    """Migrate a record to the current version, one version at a time. ValueError for an unknown version."""
    version = record.get("schema")
    if version not in HISTORY:
        raise ValueError(f"schema {version}, this version reads {', '.join(map(str, HISTORY))}")
    for old in range(version, SCHEMA):
        record = {**_STEPS[old](record), "schema": old + 1}
    return record


def _from_1(record: dict[str, Any]) -> dict[str, Any]:
    config = record["config"]
    algo = {key: value for key, value in config["algo"].items() if key != "preset"}
    if config["algo"].get("preset") == "released":
        algo |= {key: value for key, value in _PRESET.items() if key in algo}
    config = {**config, "algo": algo, "run": {"precision": "fp32", **config["run"]}}
    if "about" not in algo:  # the last records of version 1 have it
        config = _declared(json.dumps(config))
    return {**record, **_without_rounds(record, config), "config": config, "cell": identity(config)}


@lru_cache(maxsize=4096)
def _declared(config: str) -> dict[str, Any]:
    """Records of one campaign have few configurations, and what is declared takes reading files."""
    return facts.declared(json.loads(config))


def _without_rounds(record: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The verdict `wrong` if an algorithm that averages in rounds applied none: its speed is that of doing nothing."""
    about = config["algo"]["about"]
    if record["status"] != "done" or record["ranks"] == 1 or not about.get("rounds"):
        return {}
    result = record["result"]
    if any(sum(rank.values()) for rank in result["bytes_per_step"]):
        return {}
    steps = len(result["step_seconds"])
    return {"status": "wrong", "reason": f"no averaging round was applied in {steps} timed steps"}


def _from_2(record: dict[str, Any]) -> dict[str, Any]:
    config = record["config"]
    return {**record, "config": {**config, "run": {"channels": 1, **config["run"]}}}


def _from_3(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _from_4(record: dict[str, Any]) -> dict[str, Any]:
    config = record["config"]
    if config.get("compute") is None:
        return record
    return {**record, "config": {**config, "compute": {**config["compute"], "haste": 1.0}}}


def _from_5(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _from_6(record: dict[str, Any]) -> dict[str, Any]:
    config = record["config"]
    network = config["network"]
    late = config["mode"] == "simulate" and "shaped" in config["cluster"]["physics"]
    late = late and bool(network["latency"] or network["jitter"])
    config = {**config, "network": {**network, "software_delay": late}}
    return {**record, "config": config, "cell": identity(config)} if late else {**record, "config": config}


def _from_7(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _from_8(record: dict[str, Any]) -> dict[str, Any]:
    config = record["config"]
    algo, run = config["algo"], config["run"]
    about = {key: value for key, value in algo["about"].items() if key not in ("pairs", "unpaired")}
    if run.get("elastic"):
        run = {**run, "elastic": {"regroup": False, **run["elastic"]}}
    return {**record, "config": {**config, "algo": {**algo, "about": about}, "run": run}}


def _from_9(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _from_10(record: dict[str, Any]) -> dict[str, Any]:
    config = record["config"]
    return {**record, "config": {**config, "network": {**config["network"], "sites": 1, "wan": _NO_WAN}}}


def _from_11(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _from_12(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _from_13(record: dict[str, Any]) -> dict[str, Any]:
    return record


_STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: _from_1,
    2: _from_2,
    3: _from_3,
    4: _from_4,
    5: _from_5,
    6: _from_6,
    7: _from_7,
    8: _from_8,
    9: _from_9,
    10: _from_10,
    11: _from_11,
    12: _from_12,
    13: _from_13,
}
"""For each version, the migration to the next."""
