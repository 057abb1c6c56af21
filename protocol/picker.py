"""Picker: what may be asked of which peer now, as bitmaps over the ordinals of one series.

Same site first: whoever has a chunk there is asked at once. Across sites a chunk is asked by the border it was
dealt to; from the seed only when its own site owns the chunk, else from any other holder. When a border, or an
owner site, has brought nothing for a while, the next rank steps in. What a border with nothing left of its own
does is in `helping`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from .link import HOPE_S, Link
from .ranges import bits_of, iterate
from .roster import Dealing

LEAST_PATIENCE_S: Final = 3.0
FIRST_PATIENCE_S: Final = 5.0
"""A border that is alive and brings nothing for so long is stuck. One that is merely slow is helped by stealing."""

REFUSED_S: Final = 2.0
"""How long what a seed has refused is not stolen again: another thief has it."""

CLAIM_S: Final = 5.0
"""How long a claim keeps others off a chunk."""

MAX_CLAIMS: Final = 3
"""Claims on one chunk that are heeded: who claims and brings nothing delays it, and cannot keep it out."""

SLOWER: Final = 2.0
"""So many times as long as any chunk took that came here, others are waited for at least."""

BLOB_PATIENCE_S: Final = 1.5
"""Blobs are small, and nothing can be opened without them: they are waited for as long as any chunk took, and this."""

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
    brought: dict[bytes, int] = field(default_factory=dict)  # border -> ordinals that it takes from the seed, all sites
    columns: list[int] = field(default_factory=list)  # ordinals by the border of this site that they are dealt to
    alive: frozenset[bytes] = frozenset()
    unseen: frozenset[bytes] = frozenset()  # borders of this site that it cannot be linked to, taken to be alive
    handed: int = 0  # owned ones that the seed has just sent to a thief: they may come from that one's site, too
    detour: int = 0  # ordinals that the seed has just sent to one that brings nothing: they may come from its site
    hoped_s: dict[int, float] = field(default_factory=dict)  # ordinal -> since when a border is to pass it on
    near_s: dict[int, float] = field(default_factory=dict)  # ordinal -> since when a slow mate offers it
    refused: dict[int, float] = field(default_factory=dict)  # ordinal -> until when the seed, asked for it, says no
    moved: int = 0  # ordinals that were asked of one peer, and then of another from which they come sooner
    taken: int = 0  # ordinals that this node took over from other borders of its site, and claimed
    claimed: dict[int, float] = field(default_factory=dict)  # ordinal -> until when another border fetches it
    claimed_by: dict[int, bytes] = field(default_factory=dict)
    failed: set[bytes] = field(default_factory=set)  # who claimed what did not come, or has brought nothing at all
    claims: Counter[int] = field(default_factory=Counter)  # ordinal -> how often it was claimed
    progress_s: dict[object, float] = field(default_factory=dict)  # border id, or owner site -> last new chunk
    began_s: float = 0.0
    idle_since_s: float = math.inf  # since when this border has nothing left to fetch
    took_s: float = 0.0  # mean time from asking another site until the chunk came
    most_took_s: float = 0.0  # the longest
    came_s: float = math.inf  # when a chunk came last from another site
    patience_s: float = FIRST_PATIENCE_S  # mean time between two pieces of progress
    deviation_s: float = 0.0

    @property
    def active(self) -> Dealing | None:
        """The dealing, where this node's site has a part in it."""
        return self.dealing if self.dealing is not None and self.dealing.takes_part else None

    def deal(self, named: int, alive: frozenset[bytes], now_s: float) -> None:
        """Work out the masks for newly named ordinals, or for all when the living borders have changed."""
        if self.dealt and alive is self.alive and not named & ~self.dealt:
            return  # nothing has changed, as most of the time
        dealing = self.active
        if dealing is None:
            return
        if not self.dealt:
            self.began_s = now_s
        if alive != self.alive:
            self.alive, self.dealt, self.mine, self.owned = alive, 0, 0, 0
            self.brought.clear()
        if not self.dealt:
            self.columns = [0] * dealing.columns
        new = named & ~self.dealt
        for ordinal in iterate(new):
            self.columns[dealing.column(ordinal)] |= 1 << ordinal
            if dealing.rank(ordinal, alive) == 0:
                self.mine |= 1 << ordinal
            if dealing.site_rank(ordinal) == 0:
                self.owned |= 1 << ordinal
            bringer = dealing.bringer(ordinal)
            if bringer is not None:
                self.brought[bringer] = self.brought.get(bringer, 0) | 1 << ordinal
        self.dealt |= new

    def allowed(self, link: Link, site: str) -> int:
        """Ordinals that may be asked of a peer by this node of `site`."""
        if self.active is None:
            return _EVERYTHING
        if link.site == site:
            return self.mine if link.node in self.seeds else _EVERYTHING
        if not self.is_source(link):
            return self.mine
        if link.node in self.seeds or not self.seeds & self.alive:
            return self.mine & self.owned
        return self.mine & self.owned & self.detour  # else the seed itself is there to be asked

    def is_source(self, link: Link) -> bool:
        """Whether a peer is a seed, or shares a seed's links to other sites: those carry each chunk once."""
        return link.node in self.seeds or link.site in self.seed_sites

    def heard(self, node: bytes, site: str, new: int, now_s: float) -> None:
        """Note that a peer has new chunks: whoever was dealt them is at work."""
        dealing = self.active
        if dealing is None or not new or node in self.seeds or site in self.seed_sites:
            return
        if node in dealing.borders:
            self._progressed(node, now_s)
        if self.unseen and site == dealing.site:
            for border, share in self.shares(dealing, new):
                if share and border in self.unseen:
                    self._progressed(border, now_s)  # who else would have brought it
        if dealing.owns_any(site):
            self._progressed(site, now_s)

    def _progressed(self, who: object, now_s: float) -> None:
        interval = now_s - self.progress_s.get(who, self.began_s)
        self.deviation_s += (abs(interval - self.patience_s) - self.deviation_s) / 4
        self.patience_s += (interval - self.patience_s) / 8
        self.progress_s[who] = now_s

    def to_come(self, node: bytes) -> int:
        """Ordinals that this node brings into its site and that a border of another one takes from the seed.

        None where the seed is at this site: all comes from there.
        """
        if self.seeds & self.alive and not self.seed_sites:
            return 0
        return self.brought.get(node, 0) & self.mine & (~self.owned | self.handed)

    def passed_on(self, node: bytes, ordinals: int, now_s: float) -> dict[bytes, int]:
        """What of `ordinals`, which a node of another site has, the borders of their columns there will soon have.

        By border; of each chunk for a moment only: that border may be none that gets it.
        """
        dealing = self.active
        soon: dict[bytes, int] = {}
        if dealing is None:
            return soon
        for ordinal in iterate(ordinals):
            border = dealing.partner(ordinal, node)
            if border != node and now_s - self.hoped_s.setdefault(ordinal, now_s) < HOPE_S:
                soon[border] = soon.get(border, 0) | 1 << ordinal
        return soon

    def is_to_come(self, ordinal: int, now_s: float) -> bool:
        """Whether another border of this site has said that it brings this chunk in, so that it will soon be here."""
        return self.claimed.get(ordinal, 0.0) > now_s

    def brings_instead(self, node: bytes, ordinal: int, other: bytes | None) -> None:
        """Note that a border will not take a chunk from the seed; `other` does, if anyone is known to.

        It is to come from the border of its column at that one's site: to that one the way is warm.
        """
        self.brought[node] = self.brought.get(node, 0) & ~(1 << ordinal)
        if other is None:
            return
        dealing = self.active
        if dealing is not None:
            other = dealing.partner(ordinal, other)
            if node == dealing.me:
                self.handed |= 1 << ordinal
        self.brought[other] = self.brought.get(other, 0) | 1 << ordinal

    def stolen(self, ordinals: int, thief: bytes) -> Iterator[int]:
        """Those of `ordinals`, claimed at another site, that were this node's to take from the seed: a thief does."""
        dealing = self.active
        if dealing is None:
            return
        for ordinal in iterate(ordinals & self.dealt & self.mine & self.owned & ~self.handed):
            if dealing.bringer(ordinal) == dealing.me:
                self.brings_instead(dealing.me, ordinal, thief)
                yield ordinal

    def came(self, took_s: float, now_s: float) -> None:
        """Note that a chunk came from another site, so long after it was asked for."""
        self.came_s = now_s
        self.took_s += (took_s - self.took_s) / 8
        self.most_took_s = max(self.most_took_s, took_s)

    def claim(self, ordinals: int, until_s: float, by: bytes) -> None:
        """Leave chunks to the one who claimed them until then; 0 gives back what that one had to whom it was dealt.

        Of two who claim the same at the same time, the one with the lesser id has it.
        """
        dealing = self.active
        if dealing is None:
            return
        for ordinal in iterate(ordinals & self.dealt):
            if until_s and (self.claims[ordinal] >= MAX_CLAIMS or (self.taken >> ordinal & 1 and dealing.me < by)):
                continue
            if not until_s and self.claimed_by.get(ordinal) != by:
                continue
            self.taken &= ~(1 << ordinal)
            self.mine &= ~(1 << ordinal)
            if until_s:
                self.claims[ordinal] += 1
                self.claimed[ordinal] = until_s
                self.claimed_by[ordinal] = by
            else:
                self.claimed.pop(ordinal, None)
                if dealing.rank(ordinal, self.alive) == 0:
                    self.mine |= 1 << ordinal

    def release(self, ordinal: int) -> bool:
        """Hand back a chunk that was taken over from another border. Returns whether it was."""
        bit = 1 << ordinal
        if not self.taken & bit:
            return False
        self.taken &= ~bit
        self.mine &= ~bit
        return True

    def step_in(
        self,
        missing: int,
        offered: int,
        now_s: float,
        benched: frozenset[bytes] = frozenset(),
        *,
        wait_s: float | None = None,
    ) -> Iterator[int]:
        """Ordinals that this node takes over because those before it have brought nothing for a while.

        `missing` are not here and not asked for; `offered` are offered by peers at other sites than the seed's;
        nobody waits for those who are `benched`, for others `wait_s`, or as long as chunks have taken. Each ordinal
        yielded has become `mine`, and `owned` where the owner site has had its time too: claim it.
        """
        dealing = self.active
        if dealing is None:
            return
        wait_s = self._wait_s() if wait_s is None else wait_s
        trusted = self.alive - benched
        late_borders = [self._border_late(dealing, each, trusted, wait_s, now_s) for each in range(dealing.columns)]
        late_owners = [self._owner_late(dealing, turn, wait_s, now_s) for turn in range(dealing.period)]
        if not any(late_borders) and not any(late_owners):
            return
        for ordinal in iterate(missing & self.dealt & ~(self.mine & self.owned)):
            if self.is_to_come(ordinal, now_s):
                continue
            bit = 1 << ordinal
            if not self.mine & bit:
                if not late_borders[dealing.column(ordinal)]:
                    continue
                self._note_failure(dealing, ordinal, trusted)
                self.take_over(bit)
                yield ordinal
            if not self.owned & bit and not offered & bit and late_owners[ordinal % dealing.period]:
                self.owned |= bit

    def _wait_s(self) -> float:
        """How long someone is silent before the next rank steps in.

        Twice as long as any chunk took that came here; and where nothing has come to anybody, that is no sign of who is
        to blame: the chunks may be large, or the links slow.
        """
        wait_s = max(LEAST_PATIENCE_S, self.patience_s + 4 * self.deviation_s, SLOWER * self.most_took_s)
        return wait_s if self.most_took_s or self.progress_s else 2 * wait_s

    def _border_late(
        self, dealing: Dealing, column: int, trusted: frozenset[bytes], wait_s: float, now_s: float
    ) -> bool:
        """Whether this node may step in for the border that brings this column in."""
        ordinal = column * dealing.period
        if dealing.rank(ordinal, self.alive) == 0 and dealing.is_border:
            return bool(self.claimed)  # all of it is `mine`, but for what others have claimed
        rank = dealing.rank(ordinal, trusted) + (0 if dealing.is_border else OUTSIDER_RANK)
        if rank == 0:
            return True  # all those before are benched
        return self.silent_s(dealing.border(ordinal, trusted), now_s) >= rank * wait_s

    def _note_failure(self, dealing: Dealing, ordinal: int, trusted: frozenset[bytes]) -> None:
        """Remember whose chunk this node takes over: who claimed it, or the border that has brought nothing so far."""
        claimer = self.claimed_by.pop(ordinal, None)
        border = dealing.border(ordinal, trusted)
        if claimer is not None:
            self.failed.add(claimer)
        elif border != dealing.me and border is not None and border not in self.progress_s:
            self.failed.add(border)

    def take_failed(self) -> set[bytes]:
        """Who was stepped in for since the last call: those who claimed in vain, and those who brought nothing."""
        failed, self.failed = self.failed, set()
        return failed

    def _owner_late(self, dealing: Dealing, turn: int, wait_s: float, now_s: float) -> bool:
        """Whether this node's site may step in for the site that takes these chunks from the seed."""
        rank = dealing.site_rank(turn)
        return rank > 0 and self.silent_s(dealing.owner(turn), now_s) >= rank * wait_s

    def silent_s(self, who: object, now_s: float) -> float:
        """How long a border, or an owner site, has brought nothing."""
        return now_s - self.progress_s.get(who, self.began_s)

    def take_over(self, ordinals: int) -> None:
        """Bring these in, which were dealt to other borders of this site: claim them."""
        self.mine |= ordinals
        self.taken |= ordinals

    def claimed_now(self, now_s: float) -> int:
        """Ordinals that other borders of this site have claimed just now."""
        return bits_of(ordinal for ordinal, until_s in self.claimed.items() if until_s > now_s)

    def shares(self, dealing: Dealing, ordinals: int) -> Iterator[tuple[bytes, int]]:
        """(border of this site, what of `ordinals` is dealt to it) for each."""
        return ((border, ordinals & column) for border, column in zip(dealing.borders, self.columns, strict=False))
