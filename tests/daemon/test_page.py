"""The status page in a real browser, over real daemons."""

import pytest
from daemon.single import head_of, member_of
from support.browser import CHROMIUM, tab_of_chromium
from support.streams import model, write_tree

STREAM = "qwen"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

CELLS = "Array.from(document.querySelectorAll('#{}  tbody tr'), row => row.innerText.split('\\t'))"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNLABELLED = """Array.from(document.querySelectorAll('button, select, [role=img], section'))
  .filter(each => !(each.getAttribute('aria-label') || each.getAttribute('aria-labelledby') || each.closest('label')))
  .map(each => each.outerHTML)"""
CONTRAST = """(() => {
  const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = colour => { const [r, g, b] = colour.match(/[0-9.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  const card = light(getComputedStyle(document.querySelector('section')).backgroundColor);
  return Math.min(...Array.from(document.querySelectorAll('td, th, dt, dd, caption, h2'), each => {
    const ink = light(getComputedStyle(each).color);
    return (Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05);
  }));
})()"""


@pytest.fixture
async def head(root):
    async with head_of(root, tcp=True) as running:
        yield running


def address_of(single):
    return f"http://{single.config.local.tcp}/#token={single.config.local.token_file.read_text().strip()}"


async def publish(head, root, step):
    await head.publish(STREAM, write_tree(root / "trainer" / str(step), model(1, step)))


async def test_it_renders_updates_by_itself_fits_a_phone_and_is_readable_in_the_dark(head, root, tmp_path):
    async with member_of(head, root) as member, tab_of_chromium() as tab:
        await publish(head, root, 0)
        await member.committed(STREAM, 1)
        await tab.open(address_of(head))
        await tab.be(1280, 900)
        await tab.until("document.querySelector('#now dd')?.innerText === '1'")
        await tab.until("document.querySelector('#live')?.innerText === 'live'")
        assert await tab.run("location.hash") == ""  # the token does not stay where it would be copied or kept

        await publish(head, root, 1)
        await tab.until("document.querySelector('#now dd').innerText === '2'")
        await tab.until("document.querySelectorAll('#lives tbody tr').length === 2")
        await tab.until("document.querySelectorAll('#patches button').length === 2")
        await member.committed(STREAM, 2)
        await tab.until("document.querySelectorAll('#fleet tbody tr').length === 2")
        await tab.until("document.querySelector('#fleet tbody').innerText.match(/\\t2\\t0/g)?.length === 2")
        assert [row[0] for row in await tab.run(CELLS.format("lives"))] == ["2", "1"]
        assert {row[0] for row in await tab.run(CELLS.format("fleet"))} == {head.config.node.site, "b"}
        assert len(await tab.run(CELLS.format("links"))) == 1
        await tab.until("document.querySelectorAll('#groups tbody tr').length > 0")
        await tab.picture(tmp_path / "wide.png")

        await tab.be(360, 740, dark=True)
        assert await tab.run(OVERFLOW) <= 0
        assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
        assert await tab.run(CONTRAST) >= 4.5
        await tab.picture(tmp_path / "phone.png")
        await tab.be(1280, 900)
        assert await tab.run(CONTRAST) >= 4.5
        assert await tab.run(UNLABELLED) == []
        assert tab.complaints == []


async def test_without_the_token_it_says_what_is_missing(head):
    async with tab_of_chromium() as tab:
        await tab.open(address_of(head).partition("#")[0])
        await tab.until("document.querySelector('#problem')?.innerText.includes('token')")
        assert await tab.run("document.querySelectorAll('#now dd').length") == 0
