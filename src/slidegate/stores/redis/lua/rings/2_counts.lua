-- The ring of counts, as core/windows/counters.py: one number for the newest slice, `running`, and `full`, those of the
-- slices before it, oldest first; the first of them is never 0.

local MOST_COUNTED = 4294967295

local function count_at(w, place)
  return (unpack_from("<I4", w.full, place * 4 + 1))
end

local function make_counts()
  local counts = {}

  -- Drop empty slices at the old end, and say when the oldest one leaves.
  function counts.trim(w)
    local full = w.full
    if #full > 0 then
      local zeros = (find(full, "[^%z]") or #full + 1) - 1
      full = sub(full, zeros - zeros % 4 + 1)
      w.full = full
    end
    w.leaves = w.spent > 0 and w.newest + (w.slices - #full / 4) * w.slice or 0
    w.dirty = true
  end

  function counts.look(w, now)
    if w.spent > 0 and now >= w.leaves then
      if now >= w.newest + w.slices * w.slice then
        w.spent, w.running, w.newest, w.full = 0, 0, 0, ""
      else
        local passed = now - w.leaves
        local cut = (passed - passed % w.slice) / w.slice + 1
        for place = 0, cut - 1 do
          w.spent = w.spent - count_at(w, place)
        end
        w.full = sub(w.full, cut * 4 + 1)
      end
      counts.trim(w)
    end
    if now < w.newest - w.slice then
      counts.step_back(w, now)
    end
  end

  -- Move units ahead of the slice of now into it.
  function counts.step_back(w, now)
    local running_at = now - now % w.slice
    local slices = #w.full / 4
    local kept = max((running_at - w.newest) / w.slice + slices + 1, 0)
    local ahead = w.running
    for place = kept, slices - 1 do
      ahead = ahead + count_at(w, place)
    end
    w.spent = w.spent - ahead + min(ahead, MOST_COUNTED)
    w.running = min(ahead, MOST_COUNTED)
    w.full = sub(w.full, 1, kept * 4)
    w.newest = running_at + w.slice
    counts.trim(w)
    renew(w)
  end

  function counts.wait(w, now, room)
    counts.look(w, now)
    local excess = w.spent - room
    if excess <= 0 then
      return 0
    elseif room < 0 then
      return NEVER
    end
    local place, leaving, slices = 0, 0, #w.full / 4
    while place < slices do
      leaving = leaving + count_at(w, place)
      if leaving >= excess then
        break
      end
      place = place + 1
    end
    return w.leaves + place * w.slice - now
  end

  function counts.add(w, now, units)
    if units <= 0 then
      return
    end
    counts.look(w, now)
    if now >= w.newest then
      local ends = now - now % w.slice + w.slice
      if w.spent > 0 then
        local skipped = (ends - w.newest) / w.slice - 1
        w.full = w.full .. pack("<I4", w.running) .. rep("\0", 4 * skipped)
      else
        w.leaves = ends + w.slices * w.slice
      end
      w.running = 0
      w.newest = ends
    end
    w.running = w.running + units
    w.spent = w.spent + units
    w.dirty = true
  end

  function counts.charge(w, now, units)
    counts.look(w, now)
    local running = now < w.newest and w.running or 0
    local kept = min(units, MOST_COUNTED - running)
    counts.add(w, now, kept)
    return kept
  end

  function counts.remove(w, now, at, units)
    counts.look(w, now)
    local slices = #w.full / 4
    local place = (at - at % w.slice - w.newest) / w.slice + slices + 1
    if w.spent == 0 or place < 0 or place > slices or units <= 0 then
      return false
    end
    local there = place == slices and w.running or count_at(w, place)
    if units > there then
      return false
    end
    w.spent = w.spent - units
    if place < slices then
      w.full = sub(w.full, 1, place * 4) .. pack("<I4", there - units) .. sub(w.full, place * 4 + 5)
    else
      w.running = there - units
      while w.running == 0 and slices > 0 do
        -- The newest slice that counted something runs again.
        slices = slices - 1
        w.running = count_at(w, slices)
        w.full = sub(w.full, 1, slices * 4)
        w.newest = w.newest - w.slice
      end
      if w.running == 0 then
        w.newest = 0
      end
    end
    counts.trim(w)
    return true
  end

  return counts
end

local made_counts

local function counts_ring()
  made_counts = made_counts or make_counts()
  return made_counts
end
