"""A Markdown page as tests see it: code blocks with their place, code spans, links, and the anchors of headings."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """Code that stands by itself: fenced, or indented by four columns (then without a language)."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Page:
    """One page, by its path from the repository's root."""

    def __init__(self, name, text=None):
        self.name = name
        self.path = ROOT / name
        self.blocks: list[Block] = []
        self._prose: list[tuple[int, str]] = []
        self._read((self.path.read_text() if text is None else text).split("\n"))

    def _read(self, lines):
        number = 0
        while number < len(lines):
            line, start = lines[number], number
            if fence := re.match(r"( *)```(\w*)", line):
                number += 1
                while not re.fullmatch(r" *```", lines[number]):  # an open fence ends in an IndexError
                    number += 1
                self._add(start, fence[2] or "none", lines[start + 1 : number], len(fence[1]))
                number += 1
            elif line.startswith("    ") and (number == 0 or not lines[number - 1].strip()):
                while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                    number += 1
                self._add(start, "", lines[start:number], 4)
            else:
                self._prose.append((number + 1, line))
                number += 1

    def _add(self, start, language, lines, indent):
        text = "\n".join(line[indent:] for line in lines).rstrip("\n") + "\n"
        self.blocks.append(Block(self.name, start + 1, language, text))

    @property
    def prose(self):
        """Everything but the blocks; spans may go over the end of a line."""
        return "\n".join(line for _, line in self._prose)

    def spans(self):
        """What stands between single backticks."""
        return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", self.prose)]

    def links(self):
        """Targets of links and pictures."""
        prose = re.sub(r"`[^`]*`", "", self.prose)
        return re.findall(r"\]\(([^()\s]+)\)", prose) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", prose)

    def anchors(self):
        """What GitHub calls the page's headings."""
        found: dict[str, int] = {}
        anchors = set()
        for _, line in self._prose:
            if heading := re.fullmatch(r"#{1,6} +(.+?) *#*", line):
                name = re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
                count = found[name] = found.get(name, -1) + 1
                anchors.add(f"{name}-{count}" if count else name)
        return anchors


def pages():
    """Every page that people read: the README, and what lies in docs/."""
    docs = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return [Page(name) for name in ["README.md", "CHANGELOG.md", *docs]]
