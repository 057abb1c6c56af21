"""Every link of the pages leads somewhere: files are there, and so are the headings that anchors name."""

import pytest

from .markdown import ROOT, Page, pages

PAGES = {page.name: page for page in pages()}


def broken(page):
    """Links of the page that lead nowhere."""
    for target in page.links():
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.path.parent / name).resolve() if name else page.path
        if not path.exists() or not path.is_relative_to(ROOT):
            yield target
        elif anchor:
            other = page if path == page.path else Page(str(path.relative_to(ROOT)))
            if anchor not in other.anchors():
                yield target


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_the_page_leads_somewhere(name):
    assert list(broken(PAGES[name])) == []


@pytest.mark.parametrize("name", sorted(name for name in PAGES if name.startswith("docs/")))
def test_the_readme_leads_to_every_page(name):
    assert any(name == target.partition("#")[0] for target in PAGES["README.md"].links()), f"README.md has no {name}"


def test_a_link_that_leads_nowhere_is_found():
    page = Page(
        "README.md",
        "# A heading, here\n[a](docs/none.md) [b](#a-heading-here) [c](#nope) [d](docs/codec.md#the-codec)\n",
    )
    assert list(broken(page)) == ["docs/none.md", "#nope"]
