"""What a profile has released of the columns of numbers, and a private mixture may start from.

    profiled_centre    of each stored column its median
    profiled_reach     the distance from it that holds 95 % of the numbers or more

Both are 0 for a column of which the profile knows too little.

They are functions of released values.
"""

from __future__ import annotations

CENTRE, REACH = PROFILED_NAMES = ("profiled_centre", "profiled_reach")
HELD = 0.95  # of the numbers, between the quantiles on either side
