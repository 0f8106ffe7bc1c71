"""The report: one page that needs nothing else, sortable in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bagua_bench.report import page
from bagua_bench.results import records
from bagua_bench.results.provenance import HOME
from tests.integration.cli import python
from tests.unit.test_figures import RATES, campaign

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
SORT = '<script>document.querySelectorAll("th")[5].click()</script></body>'


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
    assert not re.search(r'(src|href)="(?!data:)', text)
    for part in ("bytegrad", "network asked", "network measured", "machine"):
        assert part in text


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
    alone = command("transport", "--results", str(HOME / "results"), "--out", str(tmp_path / "none.html"))
    assert (alone.returncode, len(alone.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "none.html").exists()


def test_texts_are_escaped() -> None:
    [record] = campaign({"<b>": [1.0]})
    assert "<b>" not in page.page({"<i>": [record]}, []).replace("<body>", "")


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_a_browser_sorts_it(tmp_path: Path) -> None:
    page = write(tmp_path)
    page.write_text(page.read_text().replace("</body>", SORT))
    show = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    done = subprocess.run(show, capture_output=True, text=True, timeout=60)
    rates = [
        float(x)
        for x in re.findall(r'<tr class="measured">(?:<td.*?</td>){5}<td[^>]*data-value="([\d.]+)"', done.stdout)
    ]
    assert rates == sorted(rates) and len(rates) == 15
