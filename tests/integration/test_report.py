"""The report: one page that needs nothing else, tried in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from bagua_bench.figures import style
from bagua_bench.report import page
from bagua_bench.results import records
from bagua_bench.results.provenance import HOME
from tests.integration.cli import python
from tests.unit.test_figures import RATES, campaign

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
SORT = '<script>document.querySelectorAll("th button")[6].click()</script></body>'
FILTER = """<script>
const input = document.querySelector("input[type=search]");
input.value = "bytegrad";
input.dispatchEvent(new Event("input"));
</script></body>"""
SLIDE = """<script>
const sliders = document.querySelectorAll("#map input");
sliders[0].value = 0;
sliders[0].dispatchEvent(new Event("input"));
</script></body>"""
pytestmark = pytest.mark.skipif(find_spec("plotly") is None, reason="plotly is not installed")


def command(*arguments: str, cold: bool = False) -> subprocess.CompletedProcess[str]:
    return python(Path.cwd(), "-m", "bagua_bench.report", *arguments, cold=cold)


def write(folder: Path) -> Path:
    for record in campaign(RATES):
        records.append(folder / "quick" / "records.jsonl", record)
    target = folder / "report.html"
    done = command("quick", "--results", str(folder), "--out", str(target))
    assert done.returncode == 0, done.stderr
    return target


def test_it_shows_every_record_and_refers_to_nothing_outside(tmp_path: Path) -> None:
    text = write(tmp_path).read_text()
    assert text.count('<tr class="measured">') == sum(len(rates) for rates in RATES.values())
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)  # the library names pages that it does not load
    assert not re.search(r'(src|href)="(?!data:|#)', own)
    for part in ("bytegrad", "network asked", "network measured", "machine", 'alt="quick: Throughput of several'):
        assert part in text


def test_a_folder_that_is_not_there_is_said_before_anything_is_drawn(tmp_path: Path) -> None:
    done = command("--out", str(tmp_path / "missing" / "x.html"), cold=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "there is no folder" in done.stderr


def test_nothing_to_show(tmp_path: Path) -> None:
    done = command("quick", "--results", str(tmp_path), cold=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_all_results_of_the_repository_are_shown_but_records_of_another_kind(tmp_path: Path) -> None:
    """The transport's own measurements lie beside the campaigns and have a schema of their own."""
    target = tmp_path / "report.html"
    done = command("--results", str(HOME / "results"), "--out", str(target))
    assert done.returncode == 0, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("left out: ") and "results/transport/records.jsonl" in line and "schema" in line
    text = target.read_text()
    campaigns = {path.parent.name for path in (HOME / "results").glob("*/records.jsonl")} - {"transport"}
    assert set(re.findall("<h2>(.*?)</h2>", text)) >= campaigns
    missing = re.findall(r'<section id="(\w+)">\n<h2>.*?</h2>\n<p>.*?</p>\n<p>No figure', text)
    assert set(missing) <= {"validation", "validation_unseen", "validation_peers"}, "only these have no figure"
    alone = command("transport", "--results", str(HOME / "results"), "--out", str(tmp_path / "none.html"))
    assert (alone.returncode, len(alone.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "none.html").exists()


def test_texts_are_escaped() -> None:
    [record] = campaign({"<b>": [1.0]})
    text = page.page({"<i>": [record]})
    text = text[: text.index("<script>")] + text[text.rindex("</script>") :]
    assert "<i>" not in text and "&lt;i&gt;" in text
    assert not re.search(r"<td>[^<]*<b>", text)


def dumped(page: Path, *options: str) -> str:
    """The page as a browser shows it, which has nothing in common with others that run at the same time."""
    own = f"--user-data-dir={page.parent / 'profile'}"
    show = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", own, *options, "--dump-dom", page.as_uri()]
    return subprocess.run(show, capture_output=True, text=True, timeout=600, check=True).stdout


def in_a_browser(page: Path, script: str) -> str:
    """The page as it is after a script has run."""
    page.write_text(page.read_text().replace("</body>", script))
    return dumped(page)


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_a_browser_sorts_it(tmp_path: Path) -> None:
    shown = in_a_browser(write(tmp_path), SORT)
    rates = [
        float(x) for x in re.findall(r'<tr class="measured">(?:<td.*?</td>){6}<td[^>]*data-value="([\d.]+)"', shown)
    ]
    assert rates == sorted(rates) and len(rates) == 15
    assert '<th scope="col" aria-sort="ascending"' in shown


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_a_browser_filters_it_and_draws_what_can_be_hovered(tmp_path: Path) -> None:
    shown = in_a_browser(write(tmp_path), FILTER)
    hidden = re.findall(r'<tr class="measured" hidden="">', shown)
    assert len(hidden) == sum(len(rates) for name, rates in RATES.items() if name != "bytegrad")
    assert shown.count('class="main-svg"') >= 1 and "PyTorch DDP" in shown


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_a_browser_says_which_algorithm_at_a_chosen_place(tmp_path: Path) -> None:
    done = command("decision_map", "--results", str(HOME / "results"), "--out", str(tmp_path / "map.html"))
    assert done.returncode == 0, done.stderr
    shown = in_a_browser(tmp_path / "map.html", SLIDE)
    table = shown[shown.index('<section id="map">') : shown.index('<script type="application/json">{"values"')]
    assert re.findall("<output>(.*?)</output>", table) == ["1", "1", "8"]
    data = pd.read_csv(HOME / "results" / "figures" / "decision_map-8_servers.csv")
    best = data[(data["gbit_per_s"] == 1) & (data["latency_ms"] == 1)].iloc[0]
    first = re.findall(r"<tr><td>(.*?)</td><td>.*?</td><td>(.*?)x</td>", table)[0]
    assert first == (style.name(best["algorithm"]), f"{best['speed_up']:.2f}")


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_it_fits_a_telephone_and_a_desk(width: int, tmp_path: Path) -> None:
    """Nothing but tables, which scroll by themselves, is wider than the window."""
    report = "<script>document.title = document.documentElement.scrollWidth + ' ' + innerWidth</script></body>"
    page = write(tmp_path)
    page.write_text(page.read_text().replace("</body>", report))
    shown = dumped(page, f"--window-size={width},900")
    content, window = map(int, re.search("<title>(\\d+) (\\d+)</title>", shown).groups())
    assert content <= window
