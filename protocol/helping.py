"""Helping: what a border that has nothing left of its own takes over from others, so that no link is idle.

From the seed it steals what was dealt to other sites. Of the mates of its site it relieves who is slow, helps out who
has a long queue, and sounds out who has brought nothing yet. All but the first are claimed.
"""

from __future__ import annotations

import math
from typing import Final

from .chance import Chance
from .picker import LEAST_PATIENCE_S, Plan
from .ranges import bits_of, iterate
from .roster import Dealing

ENDGAME_S: Final = 0.5
"""For so long nothing has come from other sites when the last chunks are taken from those they were dealt to."""

LEFT_TO_OWNER: Final = 4
"""The last chunks of a border of this site, or of one that has brought fewer yet, are left to it: they are under way,
or as good as."""

LEFT_S: Final = 0.25
"""What the border that it was dealt to will have so soon, at the rate that it has had, is not stolen."""

LEAST_RATE: Final = 0.1
"""Chunks per second that a border is taken to bring that has brought none."""

LAST_PART: Final = 2
"""Chunks of other columns are stolen once no more than this part of all is left at the seed: before that columns are
even, unless one of them is a thief who keeps what it takes."""

RELIEF_S: Final = 1.0
"""How long a border has nothing to do before it helps another of its site: what that one lacks is mostly on its way."""

RELIEF_SHARE: Final = 16
"""Part of what another border has left that is taken over at one time."""

HOME_SPARED_S: Final = 0.1
"""What a border of the seed's own site will have so soon, at the rate that it has had, is left to it."""

HOME_SHARE: Final = 2
"""Part of the rest that one of its mates, which has nothing to do, takes over at one time."""

SOUND_OUT: Final = 1.25
"""So many times as long as any chunk took, a border has brought nothing before who has nothing to do tries a few."""


def steal(plan: Plan, free: int, chance: Chance, now_s: float) -> tuple[int | None, bool]:
    """A chunk of `free` to take from the seed in place of the border that takes longest, and whether to claim it.

    `free` are ordinals that only the seed has, neither here nor asked for. First of this node's own column, in
    place of a border of another site: to those who wait for it there the way is warm. When nothing is left of
    that, and the end is near, of other columns, which have to be claimed. Taken at random from the later half of
    what that border has left: it comes from the other end, and other thieves choose too. What that one is about to
    have only once nothing has come for a while.
    """
    dealing = plan.active
    if dealing is None or free & plan.mine & plan.owned:
        return None, False
    free &= ~bits_of(ordinal for ordinal, until_s in plan.refused.items() if until_s > now_s)
    ordinal = _late_one_of_slowest(plan, free & plan.mine, free, chance, now_s)
    if ordinal is not None:
        plan.owned |= 1 << ordinal
        return ordinal, False
    if not dealing.is_border or free.bit_count() * LAST_PART > plan.dealt.bit_count():
        return None, False
    others = free & plan.dealt & ~plan.mine & ~plan.claimed_now(now_s)
    ordinal = _late_one_of_slowest(plan, others, free, chance, now_s)
    if ordinal is not None:
        plan.owned |= 1 << ordinal
        plan.take_over(1 << ordinal)
    return ordinal, ordinal is not None


def _late_one_of_slowest(plan: Plan, free: int, left: int, chance: Chance, now_s: float) -> int | None:
    """One of `free` of the border that takes longest for them at its rate; `left` is all that only the seed has."""
    passed_s = max(now_s - plan.began_s, LEFT_S)
    spares = now_s - plan.came_s < ENDGAME_S
    slowest, most_s = 0, 0.0
    for brought in plan.brought.values():
        theirs = free & brought
        done = (brought & ~left).bit_count()
        rate = done / passed_s
        left_s = theirs.bit_count() / max(rate, LEAST_RATE)
        # The rate of one that has brought few says little: it may be in slow start.
        spared = math.ceil(rate * LEFT_S) if done >= LEFT_TO_OWNER else LEFT_TO_OWNER
        if theirs.bit_count() > (spared if spares else 0) and left_s > most_s:
            slowest, most_s = theirs, left_s
    return _late_one(slowest, chance, 0)


def help_out(plan: Plan, free: int, spare: int, chance: Chance) -> int | None:
    """One of `spare` to bring into this site in place of another border of it, for which it waits long: claim it.

    For a border that has nothing left of its own; `free` are ordinals neither here nor asked for nor at this site.
    """
    dealing = plan.active
    if dealing is None or not dealing.is_border or free & plan.mine:
        return None
    ordinal = _late_one(free & spare & plan.dealt, chance, 0)
    if ordinal is not None:
        plan.take_over(1 << ordinal)
    return ordinal


def sound_out(plan: Plan, free: int, now_s: float, benched: frozenset[bytes] = frozenset()) -> list[int]:
    """Some of `free` to bring in instead of a border that has brought nothing yet: claim them.

    For the border next in rank, which has nothing under way from other sites. Few at a time, so that little comes
    twice when the other one is merely slow; the rest when these have come, and it has still brought nothing.
    """
    dealing = plan.active
    if dealing is None or not dealing.is_border or not plan.most_took_s or free & plan.mine:
        return []
    trusted = plan.alive - benched
    wait_s = max(LEAST_PATIENCE_S, SOUND_OUT * plan.most_took_s)
    free &= ~plan.claimed_now(now_s)
    for number, column in enumerate(plan.columns):
        ordinal = number * dealing.period
        border = dealing.border(ordinal, trusted)
        if border is None or border in plan.progress_s or plan.silent_s(border, now_s) < wait_s:
            continue
        left = list(iterate(free & column & plan.owned))
        if left and dealing.rank(ordinal, trusted) == 1:
            taken = left[: max(1, len(left) // RELIEF_SHARE)]
            plan.take_over(bits_of(taken))
            plan.failed.add(border)
            return taken
    return []


def relieve(plan: Plan, free: int, offered: int, home: int, chance: Chance, now_s: float) -> list[int]:
    """Some of `free` to bring into this site in place of another border of it that is slow: claim them.

    For a border that has nothing left of its own. `free` are ordinals neither here nor asked for nor at this site,
    `offered` what peers of other sites than the seed's offer, `home` what seeds of this site do.
    """
    dealing = plan.active
    if dealing is None or not dealing.is_border or free & plan.mine:
        plan.idle_since_s = math.inf
        return []
    plan.idle_since_s = min(plan.idle_since_s, now_s)
    free &= plan.dealt & (offered | home) & ~plan.claimed_now(now_s)
    slow = _slowest(plan, dealing, free & home, now_s)
    if slow:  # all of it is there to be taken, and it need not be waited for
        taken = _late_ones(slow, math.ceil(slow.bit_count() / HOME_SHARE), 0, chance)
    else:
        taken = _relieve_fullest(plan, dealing, free, chance, now_s)
    plan.take_over(bits_of(taken))
    return taken


def _slowest(plan: Plan, dealing: Dealing, free: int, now_s: float) -> int:
    """What is left of the border that would take longest for it at the rate it had, if longer than HOME_SPARED_S."""
    by_others = bits_of(plan.claimed) | plan.taken
    slowest, most_s = 0, HOME_SPARED_S
    for border, column in plan.shares(dealing, plan.dealt):
        left, done = free & column, (column & ~free & ~by_others).bit_count()
        left_s = left.bit_count() / max(done, 1) * (now_s - plan.began_s)
        if left_s > most_s and border not in plan.unseen:  # those hear of no claim
            slowest, most_s = left, left_s
    return slowest


def _relieve_fullest(plan: Plan, dealing: Dealing, free: int, chance: Chance, now_s: float) -> list[int]:
    """After a while some of what the border with most left has: most of that is on its way to it."""
    wait_s = RELIEF_S + 2 * plan.took_s
    if now_s - plan.idle_since_s < wait_s:
        return []
    seen = (share for share in plan.shares(dealing, free) if share[0] not in plan.unseen)  # they hear of a claim
    border, most = max(seen, key=lambda share: share[1].bit_count(), default=(b"", 0))
    # The last few are on their way, unless that border has stopped. Where nothing has come to this one either, that
    # is no sign: chunks may be large, and connections cold.
    stopped = bool(border in plan.progress_s or plan.most_took_s) and plan.silent_s(border, now_s) >= 2 * wait_s
    spared = 0 if stopped else LEFT_TO_OWNER
    return _late_ones(most, max(1, most.bit_count() // RELIEF_SHARE), spared, chance)


def _late_ones(of: int, count: int, spared: int, chance: Chance) -> list[int]:
    taken = []
    for _ in range(count):
        ordinal = _late_one(of, chance, spared)
        if ordinal is None:
            break
        of &= ~(1 << ordinal)
        taken.append(ordinal)
    return taken


def _late_one(of: int, chance: Chance, spared: int) -> int | None:
    """One ordinal of the later half of some, at random; None when they are no more than `spared`."""
    ordinals = list(iterate(of))
    if len(ordinals) <= spared:
        return None
    later = ordinals[len(ordinals) // 2 :]
    return later[chance.randrange(len(later))]
