"""Thresholds, lengths of observations and priors of `Adaptive`: compromises that were measured on bench/frontier.py's map, no laws."""

LOSING = 0.97
"""Below this gain rounds lose. A switch costs each chain about half a step, so that a smaller loss is not worth one."""
RETURNING = 1.05
"""The gain from which rounds are tried with a number of chains with which they never were, or lost before: where neither mode is clearly
faster, switching between them costs more than either."""
SURE = 1.25
"""The estimated gain from which direct mode need not be looked at early; the margin is for what the estimate leaves out."""
FEW_CHAINS = 8
"""Only with so few chains is there an estimate, as verifications of more slow what the target writes beside them; and only with so few
is a draft nearly as fast as it is alone."""
LOOK_ROUNDS = 4
"""Rounds of each chain before direct mode is looked at."""
LATE = 8
"""Where the estimate is `SURE`, that many times as many."""
WINDOW_ROUNDS = 3
"""Rounds of each chain that make a window."""
MIN_ROUNDS = 16
"""The fewest rounds of a window: with one chain three are mostly chance."""
EARLY_ROUNDS = 6
"""The fewest rounds from which rounds can be ended before their window is whole, at least one of each chain."""
EARLY_DEVIATIONS = 2.5
"""They are ended so if they would lose even with an acceptance that is higher by this many standard deviations; at the end of a second
losing window one will do."""
VERDICTS = 300
"""Verdicts over which the acceptance is taken, at least four of each chain: with 300 it is known to 0.025, the gain to 2 %."""
CHANGE = 3.0
"""Standard deviations by which a window's acceptance must differ for all verdicts before it to be forgotten."""
PRIOR_GAIN = 1.2
"""The gain that is assumed before any was seen; less than the mean of the map (1.7), because what loses must be noticed."""
DRAFT_COST = 0.5
"""The most that a token of a draft alone is taken to cost, in tokens of the target, as long as none was seen with few chains."""
PRIOR_ROUNDS = 6.0
"""Rounds that the prior weighs, and verdicts that its acceptance does."""
MAX_ROUNDS = 64.0
"""Rounds that what is known weighs at most, so that a window of many chains replaces it."""
ITERATIONS = 12
"""Iterations of the target that make an observation of direct mode."""
OBSERVED_S = 0.2
"""Seconds of one at least: iterations of real engines differ, and 12 of a small model are over in 30 ms."""
ROOM_ONE_IN = 8
"""For this many requests that the target computes one may wait there, and at least one."""
SHORTEST_S = 1e-9
"""Minimum seconds that anything counts as: a clock may not advance between two events."""
MAX_CHANGES = 500
"""Decisions that are kept."""
