"""Picker: what may be asked of which peer now, as bitmaps over the ordinals of one series.

Same site first: whoever has a chunk there is asked at once. Across sites a chunk is asked by the border it was
dealt to; from the seed only when its own site owns the chunk, else from any other holder. When a border, or an
owner site, has brought nothing for a while, the next rank steps in; a border with nothing to do steals from the
far end of what nobody has begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from .chance import Chance
from .link import Link
from .ranges import bits_of, iterate
from .roster import Dealing

LEAST_PATIENCE_S: Final = 3.0
FIRST_PATIENCE_S: Final = 5.0
"""A border that is alive and brings nothing for so long is stuck. One that is merely slow is helped by stealing."""

CLAIM_S: Final = 5.0
"""How long a claim keeps others off a chunk."""

MAX_CLAIMS: Final = 3
"""Claims on one chunk that are heeded: who claims and brings nothing delays it, and cannot keep it out."""

OUTSIDER_RANK: Final = 3
"""Members that are no border wait this many ranks more before they fetch across sites themselves."""

_EVERYTHING: Final = -1
"""Bitmap with every bit set."""


@dataclass(slots=True)
class Plan:
    """What this node may fetch of one series across sites, kept up to date as chunks are named and time passes.

    `mine` are the ordinals that this node brings into its site, `owned` those that its site takes from the seed.
    Without a dealing (a late joiner, an old transition) both are everything.
    """

    dealing: Dealing | None
    seeds: frozenset[bytes]
    seed_sites: frozenset[str] = frozenset()
    mine: int = 0
    owned: int = 0
    dealt: int = 0  # ordinals that the two masks above have been worked out for
    alive: frozenset[bytes] = frozenset()
    claimed: dict[int, float] = field(default_factory=dict)  # ordinal -> until when another border fetches it
    claims: Counter[int] = field(default_factory=Counter)  # ordinal -> how often it was claimed
    progress_s: dict[object, float] = field(default_factory=dict)  # border id, or owner site -> last new chunk
    began_s: float = 0.0
    patience_s: float = FIRST_PATIENCE_S  # mean time between two pieces of progress
    deviation_s: float = 0.0

    @property
    def _dealing(self) -> Dealing | None:
        return self.dealing if self.dealing is not None and self.dealing.takes_part else None

    def deal(self, named: int, alive: frozenset[bytes], now_s: float) -> None:
        """Work out the masks for newly named ordinals, or for all when the living borders have changed."""
        if self.dealt and alive is self.alive and not named & ~self.dealt:
            return  # nothing has changed, as most of the time
        dealing = self._dealing
        if dealing is None:
            return
        if not self.dealt:
            self.began_s = now_s
        if alive != self.alive:
            self.alive, self.dealt, self.mine, self.owned = alive, 0, 0, 0
        new = named & ~self.dealt
        for ordinal in iterate(new):
            if dealing.rank(ordinal, alive) == 0:
                self.mine |= 1 << ordinal
            if dealing.site_rank(ordinal) == 0:
                self.owned |= 1 << ordinal
        self.dealt |= new

    def allowed(self, link: Link, site: str) -> int:
        """Ordinals that may be asked of a peer by this node of `site`."""
        if self._dealing is None:
            return _EVERYTHING
        if link.site == site:
            return self.mine if link.node in self.seeds else _EVERYTHING
        if not self.is_source(link):
            return self.mine
        if link.node in self.seeds or not self.seeds & self.alive:
            return self.mine & self.owned
        return 0  # the seed itself is there to be asked

    def is_source(self, link: Link) -> bool:
        """Whether a peer is a seed, or shares a seed's links to other sites: those carry each chunk once."""
        return link.node in self.seeds or link.site in self.seed_sites

    def heard(self, node: bytes, site: str, new: int, now_s: float) -> None:
        """Note that a peer has new chunks: whoever was dealt them is at work."""
        dealing = self._dealing
        if dealing is None or not new or node in self.seeds or site in self.seed_sites:
            return
        if node in dealing.borders:
            self._progressed(node, now_s)
        if dealing.owns_any(site):
            self._progressed(site, now_s)

    def _progressed(self, who: object, now_s: float) -> None:
        interval = now_s - self.progress_s.get(who, self.began_s)
        self.deviation_s += (abs(interval - self.patience_s) - self.deviation_s) / 4
        self.patience_s += (interval - self.patience_s) / 8
        self.progress_s[who] = now_s

    def claim(self, ordinals: int, until_s: float) -> None:
        """Leave chunks to the one who claimed them until then; 0 gives them back to whom they were dealt."""
        dealing = self._dealing
        if dealing is None:
            return
        for ordinal in iterate(ordinals & self.dealt):
            if until_s and self.claims[ordinal] >= MAX_CLAIMS:
                continue
            self.mine &= ~(1 << ordinal)
            if until_s:
                self.claims[ordinal] += 1
                self.claimed[ordinal] = until_s
            else:
                self.claimed.pop(ordinal, None)
                if dealing.rank(ordinal, self.alive) == 0:
                    self.mine |= 1 << ordinal

    def release(self, ordinal: int) -> bool:
        """Hand back a chunk that was dealt to another border. Returns whether it was."""
        dealing = self._dealing
        if dealing is None or dealing.rank(ordinal, self.alive) == 0:
            return False
        self.mine &= ~(1 << ordinal)
        return True

    def step_in(self, missing: int, offered: int, now_s: float) -> Iterator[int]:
        """Ordinals that this node takes over because those before it have brought nothing for a while.

        `missing` are not here and not asked for; `offered` are offered by peers at other sites than the seed's. Each
        ordinal yielded has become `mine`, and `owned` where the owner site has had its time too: claim it.
        """
        dealing = self._dealing
        if dealing is None:
            return
        wait_s = max(LEAST_PATIENCE_S, self.patience_s + 4 * self.deviation_s)
        late_borders = [self._border_late(dealing, column, wait_s, now_s) for column in range(dealing.columns)]
        late_owners = [self._owner_late(dealing, turn, wait_s, now_s) for turn in range(dealing.period)]
        if not any(late_borders) and not any(late_owners):
            return
        for ordinal in iterate(missing & self.dealt & ~(self.mine & self.owned)):
            if self.claimed.get(ordinal, 0.0) > now_s:
                continue
            bit = 1 << ordinal
            if not self.mine & bit:
                if not late_borders[dealing.column(ordinal)]:
                    continue
                self.mine |= bit
                yield ordinal
            if not self.owned & bit and not offered & bit and late_owners[ordinal % dealing.period]:
                self.owned |= bit

    def _border_late(self, dealing: Dealing, column: int, wait_s: float, now_s: float) -> bool:
        """Whether this node may step in for the border that brings this column in."""
        ordinal = column * dealing.period
        rank = dealing.rank(ordinal, self.alive) + (0 if dealing.is_border else OUTSIDER_RANK)
        if rank == 0:
            return bool(self.claimed)  # all of it is `mine`, but for what others have claimed
        return self._silent_s(dealing.border(ordinal, self.alive), now_s) >= rank * wait_s

    def _owner_late(self, dealing: Dealing, turn: int, wait_s: float, now_s: float) -> bool:
        """Whether this node's site may step in for the site that takes these chunks from the seed."""
        rank = dealing.site_rank(turn)
        return rank > 0 and self._silent_s(dealing.owner(turn), now_s) >= rank * wait_s

    def _silent_s(self, who: object, now_s: float) -> float:
        return now_s - self.progress_s.get(who, self.began_s)

    def steal(self, missing: int, offered: int, chance: Chance, now_s: float) -> int | None:
        """A chunk that was dealt to others and that nobody has claimed, for a border with nothing left of its own.

        First one that only the seed has, then one that other borders of this site have yet to bring in. Taken at
        random from the later half: their owners come from the other end, and other thieves choose too.
        """
        dealing = self._dealing
        if dealing is None or not dealing.is_border:
            return None
        claimed = bits_of(ordinal for ordinal, until_s in self.claimed.items() if until_s > now_s)
        free = missing & self.dealt & ~claimed
        for some in (free & ~offered, free & offered & ~self.mine):
            ordinals = list(iterate(some))
            if ordinals:
                later = ordinals[len(ordinals) // 2 :]
                ordinal = later[chance.randrange(len(later))]
                self.mine |= 1 << ordinal
                self.owned |= 1 << ordinal
                return ordinal
        return None
