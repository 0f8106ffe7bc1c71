"""The command `bagua-bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bagua_bench.cli import VERBS
from tests.integration.cli import recorded

COMMAND = str(Path(sys.executable).parent / "bagua-bench")


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=200)


def test_verbs_are_listed(tmp_path: Path) -> None:
    for arguments in ((), ("--help",)):
        done = command(tmp_path, *arguments)
        assert done.returncode == 0
        assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == list(VERBS)


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"campaign"}))
def test_every_verb_is_the_command_of_its_module(tmp_path: Path, verb: str) -> None:
    done = command(tmp_path, verb, "--help")
    module = ["-m", VERBS[verb].module, *([VERBS[verb].first] if VERBS[verb].first else []), "--help"]
    same = subprocess.run([sys.executable, *module], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, same.returncode) == (0, 0), done.stderr + same.stderr
    assert done.stdout.splitlines()[-3:] == same.stdout.splitlines()[-3:] and done.stdout


def test_a_run_and_a_campaign(tmp_path: Path) -> None:
    done = command(tmp_path, "run", "mode=simulate", "task=vgg16", "run.steps=1")
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert record["source"] == "simulated"
    done = command(tmp_path, "campaign", "decision_map", "campaign.dry_run=true")
    assert done.returncode == 0 and "540" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fly",), "fly: no such verb; allowed: run, campaign, advise,"),
        (("task=vgg16",), "for a run: bagua-bench run task=vgg16"),
        (("campaign",), "campaign: needs a name after it, as in: bagua-bench campaign quick"),
        (("run", "algo=none"), "algo=none"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = command(tmp_path, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
