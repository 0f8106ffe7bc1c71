"""Configuration errors: one clear line, exit code 2, nothing started."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from bagua_bench.configuration.schema import (
    ClusterKeys,
    ComputeKeys,
    ElasticKeys,
    NetworkKeys,
    RunKeys,
    TransportKeys,
    TuneKeys,
)
from bagua_bench.results import records
from tests.integration.cli import bench

SIM = "mode=simulate"
ERRORS = [  # arguments, and what the line must contain: key, value and allowed values
    (["task=vgg61"], ["task=vgg61", "bert_large, own, quadratic, resnet50, transformer, vgg16", "did you mean vgg16?"]),
    (["algo=bytegrad2"], ["algo=bytegrad2", "bytegrad", "ddp"]),
    (["taks=vgg16"], ["taks=vgg16", "no such key", "did you mean task?"]),
    (["run.step=3"], ["run.step=3", "steps, untimed, warmup", "did you mean steps?"]),
    (["algo.averge=true"], ["algo.averge=true", "average, hierarchical"]),
    (["+algo.foo=1"], ["algo.foo=1", "allowed in algo: average"]),
    (["+algo.about.foo=1"], ["foo"]),
    (["+foo=1"], ["foo=1: no such key", "allowed: mode, task, algo"]),
    (["++foo.bar=1"], ["foo={'bar': 1}: no such key", "allowed: mode, task, algo"]),
    (["+taks=1"], ["taks=1: no such key", "did you mean task?"]),
    (["+run.step=1"], ["run.step=1: no such key", "allowed in run: steps", "did you mean steps?"]),
    (["+task.foo=1"], ["task.foo=1: no such key", "allowed in task"]),
    (["+network.foo=1"], ["network.foo=1: no such key", "allowed in network"]),
    (["+compute.flop=1"], ["compute.flop=1: no such key", "did you mean flops?"]),
    (["+tune.samples=1"], ["tune.samples=1: no such key", "did you mean max_samples?"]),
    (["+elastic.foo=1"], ["elastic.foo=1: no such key", "allowed in elastic"]),
    (["+debug.foo=1"], ["debug.foo=1: no such key"]),
    (["campaign=quick", "+foo=1"], ["foo=1: no such key"]),
    (["campaign=quick", "+campaign.round=1"], ["campaign.round=1: no such key", "did you mean rounds?"]),
    (["-m", "+foo=1,2"], ["foo=1: no such key"]),
    (["run.steps=abc"], ["run.steps=abc", "expected integer"]),
    (["run.steps=0"], ["run.steps=0", "at least 1"]),
    (["mode=mesure"], ["mode=mesure", "allowed: measure"]),
    (["run.device=gpu"], ["run.device=gpu", "auto, cpu, cuda"]),
    (["run.bucket_size=10"], ["run.bucket_size=10", "a number and a unit (B, kB"]),
    (["run.timeout=0s"], ["run.timeout=0", "positive"]),
    (["task.scale=huge"], ["task.scale=huge", "paper, cpu, tiny"]),
    (["task.batch=many"], ["task.batch=many", "an integer"]),
    (["algo.average=maybe"], ["algo.average=maybe", "true or false"]),
    (["algo._target_=algorithms.nothing.Nothing"], ["algorithms.nothing.Nothing", "no module"]),
    (["cluster.servers=50"], ["cluster.servers=50", "50 ranks x task.batch=32", "at most 44 ranks"]),
    (["task.data=/not/there"], ["task.data=/not/there", "digits, or a directory with train/CLASS"]),
    (["transport=nccl"], ["transport=nccl", "there is no CUDA device", "use gloo"]),
    (["transport=nccl_bagua_net"], ["transport=nccl_bagua_net", "there is no CUDA device", "use bagua_net"]),
    (["transport.streams=4"], ["transport.streams=4", "null without"]),
    (
        ["transport=bagua_net", "transport.streams=513"],
        ["transport.streams=513", "allowed: 1 to 512 or auto with bagua_net"],
    ),
    (["transport=bagua_net", "transport.streams=auto", "run.autotune=true"], ["transport.streams=auto: run.autotune"]),
    (["transport.wire=int8"], ["transport.wire=int8", "int8 with transport=bagua_net"]),
    (["transport=bagua_net", "transport.wire=int4"], ["transport.wire=int4", "allowed: int8 with transport=bagua_net"]),
    (
        ["transport=bagua_net", "transport.wire=int8", "mode=emulate", "compute.shrink=4"],
        ["transport.wire=int8", "with compute.shrink=1"],
    ),
    (["transport=bagua_net", "transport.wire=int8", "algo=ddp"], ["transport.wire=int8", "algorithms of the engine"]),
    (["transport=bagua_net", "transport.wire=int8", "algo=async"], ["transport.wire=int8", "gradients, not weights"]),
    (["transport=bagua_net", "transport.streams=many"], ["transport.streams=many", "1 to 512 or auto"]),
    (["cluster=3x1"], ["cluster=3x1", "write cluster.servers=3 cluster.ranks_per_server=1"]),
    (["cluster=big"], ["cluster=big", "allowed: 2x2"]),
    (["task=own", "task.parameters=1e9"], ["mode=measure", "task=own", "allowed: emulate, simulate"]),
    (["task=own", SIM], ["task.parameters=null", "as in 1.3e9", "task.model"]),
    (["task=own", SIM, "task.parameters=lots"], ["task.parameters=lots", "as in 1.3e9 or 1.3B"]),
    (["task=quadratic", "mode=emulate"], ["mode=emulate", "task=quadratic", "allowed: measure"]),
    (["mode=emulate", "run.fused_optimizer=true"], ["run.fused_optimizer=true", "compute.optimizer=measured"]),
    (["mode=simulate", "run.fused_optimizer=true"], ["run.fused_optimizer=true", "mode=measure"]),
    (["algo=ddp", "run.overlap=false"], ["run.overlap=false", "algo=ddp"]),
    (["network=2gbit"], ["network=2gbit", "write network.bandwidth=2gbit"]),
    (["network=slow"], ["network=slow", "1gbit", "none, two_sites, wan"]),
    (["network.bandwidth=fast"], ["network.bandwidth=fast", "a number and a unit (bit, kbit"]),
    (["network.bandwidth=1gbit", "network.backend=none"], ["network.bandwidth=1gbit", "allowed: auto, netem, link"]),
    (["network.bandwidth=1gb"], ["network.bandwidth=1gb", "as in 1gbit"]),
    (["network.bandwidth=1gbps"], ["network.bandwidth=1gbps", "as in 1gbit"]),
    (["network.latency=5"], ["network.latency=5", "(us, ms, s), as in 5ms"]),
    (["network.latency=-5ms"], ["network.latency=-5ms", "must not be negative"]),
    (["network.backend=tbf"], ["network.backend=tbf", "auto, netem, link, none"]),
    (["network.congestion=vegas"], ["network.congestion=vegas", "cubic, bbr, reno"]),
    (["network=1gbit", "network.loss=90%"], ["network.loss=90%", "at most 50%"]),
    (["network.flow_rates=[10mbit,fast]"], ["network.flow_rates=fast", "a number and a unit (bit, kbit"]),
    (["network.flow_rates=[10mbit]", "network.backend=netem"], ["network.flow_rates", "auto or link"]),
    (["network.jitter=1ms"], ["network.jitter=1ms", "needs network.bandwidth"]),
    (["network=1gbit", "cluster.servers=1"], ["cluster.servers=1", "2 to 200 servers"]),
    (["network=1gbit", "cluster.server.2.bandwidth=1mbit"], ["cluster.server.2", "0 to 1"]),
    (["network=1gbit", "cluster.server.1.bandwith=1mbit"], ["cluster.server.1.bandwith", "bandwidth, latency"]),
    (["cluster.server=3"], ["cluster.server=3", "cluster.server.1.bandwidth=100mbit"]),
    (["mode=emulate", "compute.haste=0.01"], ["compute.haste=0.01", "at least 0.0625"]),
    (["mode=emulate", "network=1gbit", "compute.haste=2", "network.loss=1%"], ["compute.haste=2", "network.loss=1%"]),
    (
        ["mode=emulate", "network=1gbit", "compute.haste=2", "cluster.server.1.loss=1%"],
        ["compute.haste=2", "cluster.server.1.loss=1%", "allowed: 1"],
    ),
    ([SIM, "task.step_seconds=400 parsec"], ["task.step_seconds=400 parsec", "(us, ms, s, min)", "number of seconds"]),
    ([SIM, "task.step_seconds=-4ms"], ["task.step_seconds=-4ms", "must not be negative"]),
    ([SIM, "task.step_seconds=0"], ["task.step_seconds=0", "must be positive"]),
    ([SIM, "task.step_seconds=nan"], ["task.step_seconds=nan", "must be positive"]),
    ([SIM, "compute.step_seconds=400ms"], ["compute.step_seconds=400ms", "write task.step_seconds=400ms"]),
    ([SIM, "compute.step_seconds.vgg16=400ms"], ["compute.step_seconds.vgg16=400ms", "write task.step_seconds=400ms"]),
    ([SIM, "compute.step_seconds.vgg16.seconds=4h"], ["compute.step_seconds.vgg16.seconds=4h", "a unit"]),
    ([SIM, "compute.step_seconds.vgg16.seconds=0ms"], ["compute.step_seconds.vgg16.seconds=0", "must be positive"]),
    ([SIM, "compute.step_seconds.vgg16.batch=0"], ["compute.step_seconds.vgg16.batch=0", "must be positive"]),
    ([SIM, "task=transformer", "compute.flops=0"], ["compute.flops=0", "must be positive"]),
    ([SIM, "compute.memory_bandwidth=0GB"], ["compute.memory_bandwidth=0", "must be positive"]),
    ([SIM, "compute.forward_share=2"], ["compute.forward_share=2", "from 0 to 1"]),
    ([SIM, "cluster.physics.latency=15us"], ["cluster.physics.latency=15us", "without a unit; s, bytes"]),
    ([SIM, "cluster.physics.ring=0"], ["cluster.physics.ring=0", "must be positive"]),
    ([SIM, "cluster.physics.window=-1"], ["cluster.physics.window=-1", "must be positive"]),
    ([SIM, "cluster.physics.process=-1"], ["cluster.physics.process=-1", "must be positive"]),
    ([SIM, "cluster.physics.foo=1"], ["cluster.physics.foo=1", "no such key; allowed: call"]),
    ([SIM, "algo=byteps", "algo.partition=4x"], ["algo.partition=4x", "a number and a unit (B, kB"]),
    ([SIM, "algo=horovod", "algo.cycle_time=5x"], ["algo.cycle_time=5x", "(us, ms, s, min)"]),
    ([SIM, "algo=qadam", "algo.betas=[0.9]"], ["algo.betas=[0.9]", "expected [a number, a number]"]),
    ([SIM, "network=1gbit", "network.loss=50%"], ["network.loss=50%", "up to 10%"]),
    (["cluster.slow_ranks.1=nan"], ["cluster.slow_ranks.1=nan", "at least 1"]),
    (["cluster.slow_ranks.2=2"], ["cluster.slow_ranks.2", "0 to 1"]),
    (["cluster.slow_ranks.1=0.5"], ["cluster.slow_ranks.1=0.5", "at least 1"]),
    (["run.steps=["], ["run.steps=[", "KEY=VALUE"]),
    (["foo"], ["foo", "KEY=VALUE", "--help lists the keys"]),
    (["--foo"], ["--foo", "no such option", "KEY=VALUE", "--help lists the keys"]),
    (["task=quadratic", "-m", "algo=ddp,bytegrad"], ["algo=ddp,bytegrad", "before the first KEY=VALUE"]),
    (["algo=ddp,bytegrad"], ["algo=ddp,bytegrad", "-m is missing"]),
    (["campaign=quick", "algo=ddp,bytegrad", "run.steps=2"], ["algo=ddp,bytegrad", "-m is missing"]),
    (["-m", "algo=ddp,bytegrad", "run.step=2"], ["run.step=2", "did you mean steps?"]),
    (["-m", "hydra/launcher=joblib", "algo=ddp,bytegrad"], ["hydra/launcher=joblib", "srun"]),
    (["-m", "algo=ddp,nothing"], ["algo=nothing", "allowed: "]),
    (["-m", "cluster.servers=2,99"], ["cluster.servers=99", "at most 44 ranks"]),
    (["campaign=quick", "cluster.servers=99"], ["cluster.servers=99", "at most 44 ranks"]),
    (["campaign=quick", "campaign.rounds=0"], ["campaign.rounds=0", "at least 1"]),
    (["campaign=quick", "campaign.only='task=bert_large'"], ["campaign.only=task=bert_large: none of the 3 cells"]),
    (["campaign=quick", "campaign.only='tune.max_samples=5'"], ["no configuration of a cell has tune.max_samples"]),
    (["campaign=quick", "campaign.only='task=bert_lrge'"], ["campaign.only=task=bert_lrge: expected settings"]),
    (["campaign=quick", "campaign.axes=[algo]"], ["campaign.axes=algo", "KEY=A,B,C"]),
    (["campaign=quick", "campaign.axes=[[]]"], ["campaign.axes=[]", "KEY=A,B,C"]),
    (["task=quadratic", "run.results=/proc/nope"], ["run.results=/proc/nope", "a folder that can be written"]),
    (["campaign=quick", "run.results=/dev/null"], ["run.results=/dev/null", "a folder that can be written"]),
]


@pytest.mark.parametrize(("arguments", "parts"), ERRORS, ids=lambda value: " ".join(value) if value else "")
def test_errors(tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    done = bench(tmp_path, *arguments, env={"CUDA_VISIBLE_DEVICES": ""}, cold=arguments == ERRORS[0][0])
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was started or recorded"


@pytest.mark.parametrize("arguments", [["--help"], ["task=vgg61"], ["cluster.servers=50"]], ids=" ".join)
def test_answers_come_without_torch(tmp_path: Path, arguments: list[str]) -> None:
    code = (
        f"import sys, runpy; sys.argv[1:] = {arguments!r}\n"
        "try: runpy.run_module('bagua_bench', run_name='__main__')\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True).returncode == 0


def test_help_lists_the_options_and_says_what_they_mean() -> None:
    done = bench(Path.cwd(), "--help")
    assert done.returncode == 0
    for text in ("task: bert_large, own, quadratic", "algo: ", "run:", "steps: 20", "campaign=NAME"):
        assert text in done.stdout
    explained = set(re.findall(r"^([a-z_.]+?)(?:\.N)? {2,}\S", done.stdout, re.MULTILINE))
    groups = {
        "cluster": ClusterKeys,
        "transport": TransportKeys,
        "network": NetworkKeys,
        "compute": ComputeKeys,
        "run": RunKeys,
        "tune": TuneKeys,
        "elastic": ElasticKeys,
    }
    keys = {f"{group}.{field.name}" for group, schema in groups.items() for field in fields(schema)}
    assert explained == keys | {"mode"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["algo=byteps", "algo.partition=0B"], "algo.partition=0B: must be at least 1B"),
        (["task=own", "task.model=torchvision:nosuch"], "nosuch"),
    ],
)
def test_what_only_its_own_code_can_judge_is_a_failed_run_with_the_reason(
    tmp_path: Path, arguments: list[str], reason: str
) -> None:
    done = bench(tmp_path, SIM, *arguments, "run.results=own")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    [record] = records.read([tmp_path / "own" / "runs" / "records.jsonl"])
    assert record["status"] == "failed" and reason in record["reason"]
