"""Every configuration file composes, resolves and passes validation, alone and in campaigns."""

from __future__ import annotations

import json

import pytest
from hydra import compose, initialize_config_dir

from bagua_bench.campaign.cells import expand
from bagua_bench.configuration import conf_folder, schema
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.resolve import ConfigError, resolve
from bagua_bench.configuration.validate import validate
from bagua_bench.sources.signature import arguments
from tests.catalogue import composed, every_option, options, resolved, runnable, trained

NEEDS = {
    ("transport", "nccl"): ["run.device=cuda"],
    ("transport", "nccl_bagua_net"): ["run.device=cuda"],
    ("cluster", "bagua_paper"): ["mode=simulate"],  # more servers than are emulated
    ("cluster", "bagua_paper_e2e"): ["mode=simulate"],
    ("cluster", "h100_estimate"): ["mode=simulate"],
}
NEEDS |= {("task", "own"): ["mode=simulate", "task.parameters=1e9"]}
NEEDS |= {("compute", name): ["mode=emulate"] for name in options("compute")}
NEEDS |= {("algo", name): ["mode=simulate"] for name in set(options("algo")) - set(runnable())}


@pytest.mark.parametrize(("group", "name"), [(g, n) for g, n in every_option() if g not in ("campaign", "debug")])
def test_every_option_composes_and_is_valid(group: str, name: str) -> None:
    cell = resolved(f"{group}={name}", *NEEDS.get((group, name), []))
    assert getattr(cell, group).name == name
    validate(cell)
    json.dumps(cell.to_json())


@pytest.mark.parametrize("name", options("debug"))
def test_every_debug_option(name: str) -> None:
    validate(resolved(f"debug={name}"))


@pytest.mark.parametrize("name", options("campaign"))
def test_every_campaign_has_valid_cells_and_a_figure(name: str) -> None:
    chosen = composed(f"campaign={name}").campaign
    with initialize_config_dir(str(FOLDER), version_base=None):
        cells = expand(chosen, [f"campaign={name}"])
    assert len({json.dumps(cell.to_json(), sort_keys=True) for cell in cells}) == len(cells) > 0
    for cell in cells:
        validate(cell)
    __import__(f"bagua_bench.figures.{chosen.figure}")


def test_a_campaign_can_be_limited_to_some_settings() -> None:
    only = "campaign.only='algo=qadam,bytegrad network.latency=5ms'"
    chosen = composed("campaign=one_channel", only).campaign
    with initialize_config_dir(str(FOLDER), version_base=None):
        cells = expand(chosen, ["campaign=one_channel", only])
    assert len(cells) == 2 * 2 * 2, "both algorithms on the two networks of 5 ms, with one channel and several"
    assert {(cell.algo.name, cell.network.latency) for cell in cells} == {("qadam", 5e-3), ("bytegrad", 5e-3)}


@pytest.mark.parametrize(
    ("name", "given", "bandwidths", "algorithms", "hastes"),
    [
        ("tradeoff_bandwidth", ["network.bandwidth=4gbit", "algo=bytegrad"], {4e9}, {"bytegrad"}, {4.0}),
        ("peers", ["task=vgg16", "algo=horovod"], {10e9, 100e9}, {"horovod"}, {1.0, 0.5}),
        ("quick", ["algo=zero"], {None}, {"zero"}, {1.0}),
    ],
)
def test_who_chooses_one_point_of_an_axis_gets_all_that_belongs_to_it(
    name: str, given: list[str], bandwidths: set[float | None], algorithms: set[str], hastes: set[float]
) -> None:
    chosen = composed(f"campaign={name}", *given).campaign
    with initialize_config_dir(str(FOLDER), version_base=None):
        cells = expand(chosen, [f"campaign={name}", *given])
    assert {cell.network.bandwidth for cell in cells} == bandwidths
    assert {cell.algo.name for cell in cells} == algorithms and {cell.haste for cell in cells} == hastes
    assert len({cell.id for cell in cells}) == len(cells)


def test_an_override_that_leaves_no_difference_leaves_one_cell() -> None:
    channels, peers = composed("campaign=channels").campaign, composed("campaign=peers").campaign
    with initialize_config_dir(str(FOLDER), version_base=None):
        every, few = (expand(channels, ["campaign=channels", *more]) for more in ([], ["run.channels=1"]))
        assert len(every) > len(few) == len({cell.id for cell in few})
        with pytest.raises(ConfigError, match=r"task=resnet50: .* more with each value; allowed: bert_large, vgg16"):
            expand(peers, ["campaign=peers", "task=resnet50"])


def test_an_option_that_only_an_axis_brings_can_be_selected() -> None:
    only = "campaign.only='algo=qadam algo.warmup_steps=1,2 run.channels=null'"
    chosen = composed("campaign=one_channel", only).campaign
    with initialize_config_dir(str(FOLDER), version_base=None):
        cells = expand(chosen, ["campaign=one_channel", only])
    assert len(cells) == 6 and {cell.run.channels for cell in cells} == {None}


def test_cells_that_share_their_groups_are_what_hydra_composes() -> None:
    asked = [
        ["task=bert_large", "task.scale=tiny", "run.steps=3"],
        ["cluster=2x2", "network=1gbit", "cluster.server.1.bandwidth=100mbit", "cluster.slow_ranks.3=1.5"],
        ["cluster=2x2", "network=1gbit", "network.flow_rates=[1gbit,200mbit]", "network.latency=5ms"],
        ["task.batch=4", "task=bert_large", "algo=qadam", "algo.lr=1e-3", "++task.extra={a: 1}", "task.extra.a=2"],
        ["task=bert_large", "run.steps=5", "mode=simulate"],
    ]
    asked.append(asked[0])  # nothing of the others is left behind
    with initialize_config_dir(str(FOLDER), version_base=None):
        for overrides in asked:
            whole = compose("config", overrides, return_hydra_config=True)
            choices = dict(whole.hydra.runtime.choices)
            assert compose_cell(overrides) == resolve(compose("config", overrides), choices), overrides


@pytest.mark.parametrize(("group", "name"), [(g, n) for g, n in every_option() if g in ("algo", "task")])
def test_keys_are_exactly_the_constructor_s_arguments(group: str, name: str) -> None:
    part = getattr(resolved(f"{group}={name}"), group)
    assert list(part.options) == list(arguments(part.target))


@pytest.mark.parametrize(("group", "name"), [(g, n) for g, n in every_option() if g in ("algo", "task")])
def test_options_are_the_same_without_hydra(group: str, name: str) -> None:
    plain, with_hydra = conf_folder.option(group, name), getattr(resolved(f"{group}={name}"), group).to_plain()
    assert set(plain) == {key for key in with_hydra if key != "name"}
    literal = {key: value for key, value in plain["about"].items() if "${" not in str(value)}
    assert literal == {key: with_hydra["about"][key] for key in literal}


@pytest.mark.parametrize("scale", schema.SCALES)
@pytest.mark.parametrize("task", trained())
def test_every_task_at_every_scale(task: str, scale: str) -> None:
    validate(resolved(f"task={task}", f"task.scale={scale}"))
