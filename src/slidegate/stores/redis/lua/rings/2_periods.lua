-- The count of a quota, as core/periods.py. A quota has `ends`, the ends of three periods that follow each other as the
-- caller's clock sees them; the server's chooses. The server's time is Unix time, so none is ahead of the other.

local PERIOD_KEPT_US = 3600000000
local MAX_COUNT = 2 ^ 52
local PERIOD = "<i8i8i8i8"

local function make_periods()
  local periods = {}

  function periods.new()
    return { dated = true, spent = 0, newest = 0, floor = -1, reserved = 0 }
  end

  function periods.unpack(packed, from)
    local w, _ = periods.new(), nil
    w.newest, _, w.floor, w.spent = unpack_from(PERIOD, packed, from)
    return w
  end

  function periods.pack(w)
    return pack(PERIOD, w.newest, 0, w.floor, w.spent)
  end

  -- Enter the period of now, unless the count is in a later one.
  function periods.settle(w, limit, now)
    local place = 1
    while limit.ends[place] and limit.ends[place] <= now do
      place = place + 1
    end
    local at = limit.ends[place]
    if not at then
      error("the clock of a worker is behind the server's by more than a period of a quota; set it", 0)
    end
    if at > w.newest then
      w.dirty = w.dirty or w.newest > 0 -- what is new need not be stored until something is spent
      w.spent, w.newest = 0, at
    end
  end

  function periods.wait(w, limit, now, cost, ahead)
    local wanted = max(cost, 1)
    if ahead + wanted > limit.amount then
      return NEVER
    end
    return w.spent + ahead + wanted > limit.amount and w.newest - now or 0
  end

  function periods.add(w, _, _, units)
    w.spent, w.dirty = w.spent + units, w.dirty or units > 0
  end

  function periods.charge(w, limit, now, units)
    local kept = min(units, MAX_COUNT - w.spent)
    periods.add(w, limit, now, kept)
    return kept
  end

  function periods.remove(w, _, spent_at, mark, units)
    if mark ~= w.newest or units == 0 or units > w.spent or spent_at <= w.floor then
      return false
    end
    w.spent, w.dirty = w.spent - units, true
    return true
  end

  function periods.state(w)
    return w.spent, w.newest, w.newest
  end

  function periods.reset(w, now)
    w.spent, w.floor, w.dirty = 0, now, true
  end

  function periods.expires(w)
    return w.newest > 0 and w.newest + PERIOD_KEPT_US or 0 -- also without units: the period before must not come again
  end

  return periods
end

local made_periods

local function periods_of_quotas()
  made_periods = made_periods or make_periods()
  return made_periods
end
