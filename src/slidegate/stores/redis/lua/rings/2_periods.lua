-- The count of a quota, as core/windows/periods.py: units, and when their period ends. A period begins where `ends` says
-- so, which holds the ends of three periods that follow each other, as the caller's clock sees them; the server's chooses.

local KEPT = 3600000000 -- how long a count outlives its period, for a clock that is set back

local function make_periods()
  local periods = {}

  function periods.enter(w, ends, now)
    local place = 1
    while ends[place] and ends[place] <= now do
      place = place + 1
    end
    local at = ends[place]
    if not at then
      error("the clock of a worker is behind the server's by more than a period of a quota; set it", 0)
    end
    if at > w.newest then
      if w.newest > 0 then
        renew(w) -- a charge of the period before is not handed back from this one
      end
      w.spent, w.newest = 0, at
    end
    w.leaves = w.newest
  end

  function periods.look(w, now)
  end

  function periods.wait(w, now, room)
    if w.spent <= room then
      return 0
    end
    return room < 0 and NEVER or w.newest - now
  end

  function periods.add(w, now, units)
    if units > 0 then
      w.spent, w.dirty = min(w.spent + units, 2 ^ 52), true
    end
  end

  function periods.charge(w, now, units)
    local before = w.spent
    periods.add(w, now, units)
    return w.spent - before
  end

  function periods.remove(w, now, at, units)
    if units < 1 or units > w.spent then
      return false
    end
    w.spent, w.dirty = w.spent - units, true
    return true
  end

  return periods
end

local made_periods

local function periods_ring()
  made_periods = made_periods or make_periods()
  return made_periods
end
