"""The comparison's arithmetic, worked out by hand, and its page in a browser."""

import json
import re
import shutil
import subprocess

import pytest
import torch

from fixedcode_megatron.comparison.activations import spectrum
from fixedcode_megatron.comparison.benchmarks import benchmarks
from fixedcode_megatron.comparison.figures import Figure, Series
from fixedcode_megatron.comparison.page import Report, to_html, write_report
from fixedcode_megatron.comparison.results import Group, RunResult, sentence
from fixedcode_megatron.comparison.svg import nice_steps, scales
from fixedcode_megatron.comparison.tables import Table, losses, machine, summary
from fixedcode_megatron.training.metrics_file import History

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


def run(variant, loss, *, setting="", seed="1", seconds=(0.5, 0.25), evaluation=None):
    rows = [
        {
            "iteration": 10 * (i + 1), "consumed tokens": 1000 * (i + 1), "data checksum": 1,
            "elapsed time per iteration (ms)": 1e3 * s, "tokens per second": 100 / s,
            "grad norm input": None, "grad norm layers": 1.0, "grad norm head": 2.0,
            "memory peak (bytes)": (i + 1) * 2**20, "memory peak of": "resident set",
        }
        for i, s in enumerate(seconds)
    ]  # fmt: skip
    return RunResult(
        name=variant, variant=variant, setting=setting, seed=seed, command="", weights=None,
        history=History(rows, [{"iteration": 20, "lm loss": loss}]), evaluation=evaluation,
    )  # fmt: skip


def group(variant, *perplexities, setting=""):
    losses = [float(torch.tensor(p, dtype=torch.float64).log()) for p in perplexities]
    runs = [
        run(variant, loss, setting=setting, seed=str(number)) for number, loss in enumerate(losses)
    ]
    return Group(setting, variant, runs)


def test_the_sentence_says_no_more_than_the_numbers():
    learned = group("learned", 19.0, 20.0, 21.0)  # mean 20, range 2: 10 %
    assert learned.mean_perplexity == pytest.approx(20) and learned.seed_range == pytest.approx(0.1)
    close = sentence(learned, group("binary", 20.5, 21.0, 21.5))
    assert close == (
        "the validation perplexity of binary is 5.00% higher than that of learned, and 3 seeds of "
        "one interface differ by up to 10.00%: these runs do not tell the two apart."
    )
    far = sentence(learned, group("binary", 15.0, 15.0, 15.0, setting="9 layers"))
    assert far.startswith("9 layers: the validation perplexity of binary is 25.00% lower")
    assert "more than the 10.00% by which 3 seeds" in far and "here binary is better" in far
    alone = sentence(group("learned", 20.0), group("binary", 30.0))
    assert "50.00% higher" in alone and "one seed cannot tell" in alone


def test_summary_and_machine_tables():
    groups = {"": [group("learned", 19.0, 21.0), group("binary", 10.0, 20.0)]}
    learned, binary = summary(groups).rows
    assert learned[2:8] == ("2", "2.9945", "20.000", "10.00%", "-", "-")  # ln 19, ln 21: 2.94, 3.04
    assert binary[4:7] == ("15.000", "66.67%", "-25.00%")
    # Seed by seed ln (10 / 19) = -0.6419 and ln (20 / 21) = -0.0488.
    assert binary[7] == "-0.6419 to -0.0488"
    # 100 tokens an iteration of 0.5 s and of 0.25 s: the median of 200 and 400.
    assert [row[-2:] for row in machine(groups).rows] == [("300", "-"), ("300", "+0.0%")]
    assert machine(groups).rows[0][2:6] == ("-", "-", "-", "2.0")


def test_a_loss_that_is_no_number_is_an_empty_cell():
    broken = run("x", 2.0)
    for row, loss in zip(broken.history.train, (None, 1.5), strict=True):
        row["lm loss"] = loss
    assert losses([broken]).rows == [
        ("x", "10", "", "", "1"),
        ("x", "20", "1.500000", "2.000000", "2"),
    ]


def test_figures_of_an_earlier_report_do_not_stay(tmp_path):
    line = Series("learned", [1.0], [2.0], [2.0], [2.0])
    table = Table("t", "A table", ("one",), [("1",)])

    def write(*keys):
        figures = [Figure(key, "Loss", "x", "y", [line]) for key in keys]
        write_report(tmp_path, Report("A", [], [], [], [table], figures, [], table))
        return sorted(path.name for path in (tmp_path / "csv").iterdir())

    assert write("loss_tokens") == ["loss_tokens.csv", "t.csv"]
    (tmp_path / "csv" / "mine.csv").write_text("the user's")
    assert write("loss_tokens_1", "loss_tokens_2") == [
        "loss_tokens_1.csv", "loss_tokens_2.csv", "mine.csv", "t.csv",
    ]  # fmt: skip


def test_progress_between_log_lines():
    tokens, seconds = run("x", 1.0).progress([5, 10, 20])
    assert tokens == [500, 1000, 2000] and seconds == [2.5, 5.0, 7.5]


def test_spectra_of_matrices_with_known_singular_values():
    diagonal = torch.zeros(6, 4)
    diagonal[0, 0] = diagonal[1, 1] = 3.0
    found = spectrum("input", diagonal)
    assert (found.rank, found.effective_rank) == (2, pytest.approx(2.0))
    assert found.rms == pytest.approx((18 / 24) ** 0.5)
    # Shares 3/4 and 1/4: exp of their entropy is (4/3)^(3/4) * 4^(1/4).
    diagonal[1, 1] = 1.0
    assert spectrum("", diagonal).effective_rank == pytest.approx((4 / 3) ** 0.75 * 4**0.25)
    assert spectrum("", torch.zeros(3, 3)).rank == 0
    assert spectrum("", torch.outer(torch.randn(50), torch.randn(8))).rank == 1


def test_benchmarks_stand_beside_the_published_ones():
    results = [{"hellaswag": {"acc_norm,none": 0.5}}, {"hellaswag": {"acc_norm,none": 0.6}}]
    runs = [run("gf2", 1.0, evaluation={"results": found}) for found in results]
    table = benchmarks({"": [Group("", "gf2", runs), group("learned", 2.0)]})
    assert table.header[2:] == ("gf2 (2)", "paper B: learned", "paper B: Binary16", "paper B: GF2")
    assert table.rows[0] == ("hellaswag", "acc_norm", "55.00", "57.79", "52.40", "51.44")
    assert table.rows[1][2] == "-"
    assert benchmarks({"": [group("learned", 2.0)]}) is None


def test_axes():
    assert nice_steps(0, 10) == [0, 2, 4, 6, 8, 10]
    assert nice_steps(2.9, 3.3, 4) == pytest.approx([2.9, 3.0, 3.1, 3.2, 3.3])
    line = Series("a", [1, 2], [1, 100], [1, 1], [1, 100])
    x_of, y_of, *_ = scales(Figure("k", "t", "x", "y", [line], log_y=True))
    assert x_of(2) == 704 and x_of(0) == 64
    middle = (y_of(1) + y_of(100)) / 2
    assert y_of(10) == pytest.approx(middle)


@pytest.fixture(scope="module")
def page():
    lines = [
        Series("learned", [1.0, 2.0, 4.0], [5.0, 4.0, 3.0], [4.5, 3.5, 2.5], [5.5, 4.5, 3.5]),
        Series("<b> & </script>", [1.0, 2.0, 4.0], [6.0, 5.0, 4.0], [6, 5, 4], [6, 5, 4]),
    ]
    figures = [
        Figure("loss", "Loss", "tokens (millions)", "loss (nats)", lines),
        Figure("rank", "Rank", "after", "rank", lines[:1], ("a", "b", "c", "d", "e"), True),
    ]
    table = Table("t", "A table", ("one", "two"), [("1", "2")], "A note.")
    return to_html(
        Report("A <title>", ["One & two."], ["Same."], ["x"], [table], figures, ["go"], table)
    )


def test_the_page_needs_nothing_else_and_speaks(page):
    assert not re.search(r"https?://|@import|url\(|src=", page)
    assert re.findall(r'href="([^"]*)"', page) == ["data:,"]
    assert "&lt;b&gt; &amp; &lt;/script&gt;" in page and "</script>b" not in page
    assert 'lang="en"' in page and "prefers-color-scheme: dark" in page
    # Every figure: words for the picture, a group that takes the focus, a live region, its table.
    assert 'role="img" aria-label="Loss. learned ends at 3.0000' in page
    assert 'class="plot" tabindex="0"' in page and 'aria-live="polite"' in page
    assert '<table data-table="loss">' in page
    assert page.count("<caption>") == page.count("<table") == 3
    assert page.count('scope="col"') == 2 + 5 + 5


_PROBE = """<script>
const figure = document.querySelector("figure"), plot = figure.querySelector(".plot");
const output = figure.querySelector("output"), said = {};
const key = (name) => plot.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
plot.focus(); said.active = document.activeElement === plot;
plot.dispatchEvent(new FocusEvent("focus")); // a window in the background sends none
said.focus = output.textContent;
key("ArrowLeft"); said.left = output.textContent;
key("Home"); said.home = output.textContent;
const box = plot.querySelector("svg").getBoundingClientRect();
const point = {clientX: box.left + box.width * 0.52, clientY: box.top + 9, bubbles: true};
plot.dispatchEvent(new PointerEvent("pointermove", point)); said.hover = output.textContent;
const [first, second] = figure.querySelectorAll("button");
second.click(); key("End"); said.alone = output.textContent;
said.pressed = [first, second].map((b) => b.getAttribute("aria-pressed"));
const line = (i) => figure.querySelector(`[data-series="${i}"]`).getBoundingClientRect();
said.drawn = [0, 1].map((i) => line(i).width > 0);
key("Escape"); said.left_alone = output.textContent;
said.paper = getComputedStyle(document.body).backgroundColor;
said.errors = errors; said.overflow = document.documentElement.scrollWidth > innerWidth;
document.body.textContent = JSON.stringify(said);
</script></body>"""
_ERRORS = (
    "<script>window.errors = []; addEventListener('error', (e) => errors.push(e.message))</script>"
)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(
    ("flags", "paper"), [([], "rgb(255, 255, 255)"), (["--force-dark-mode"], "rgb(22, 24, 27)")]
)
def test_the_page_reacts_in_a_browser(page, tmp_path, flags, paper):
    text = page.replace("<head>", f"<head>{_ERRORS}").replace("</body>", _PROBE)
    (tmp_path / "page.html").write_text(text)
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", *flags]
    command += [f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    said = json.loads(
        re.search(r"<body>(.*)</body>", done.stdout, re.S)[1]
        .replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )  # fmt: skip
    at = "at {} tokens (millions): ".format
    other = "<b> & </script> "
    end = f"learned {at(4)}3.0000 (2.5000 to 3.5000)"
    middle = f"learned {at(2)}4.0000 (3.5000 to 4.5000); {other}{at(2)}5.0000 (5.0000 to 5.0000)"
    assert said["active"]
    assert said["focus"] == f"{end}; {other}{at(4)}4.0000 (4.0000 to 4.0000)"
    assert said["left"] == said["hover"] == middle
    assert said["home"].startswith(f"learned {at(1)}5.0000")
    assert said["alone"] == end and said["left_alone"] == ""
    assert said["pressed"] == ["true", "false"] and said["drawn"] == [True, False]
    assert said["paper"] == paper and said["errors"] == [] and not said["overflow"]
