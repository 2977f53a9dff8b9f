-- The exact ring, as core/windows/timestamps.py: the time of every unit, oldest first.
--
-- A window is a table: `exact`, `spent`, `newest`, `leaves` as in the core; `older` (times) or `full` and `running`
-- (counts) packed as core/windows/codec.py packs them; the limit's `span`, `window`, `slice`, `slices`, `resolution`;
-- `dirty` once it differs from the stored row. Numbers are doubles. Times are microseconds below 2^53, which is the
-- year 2255, so sums and differences of them are exact, and so is `a % b`: the quotient is at least 1/b below the next
-- whole number, which is more than rounding can add to it while a < 2^53.

local NEVER = -1
local serials -- the serial of the next window that is made
local MOST_TIMES = 3600
local floor, max, min = math.floor, math.max, math.min
local sub, rep, find, byte = string.sub, string.rep, string.find, string.byte
local pack, unpack_from = struct.pack, struct.unpack

-- Make another window of one whose units move because the clock has stepped back: an earlier charge is no longer at the
-- moment by which a refund would find it.
local function renew(w)
  w.dirty = true
  if serials then
    w.serial = serials
    serials = (serials + 1) % 4294967296
  end
end

local function time_at(w, place)
  if place == w.spent - 1 then
    return w.newest
  end
  return (unpack_from("<i8", w.older, place * 8 + 1))
end

-- Functions are made when they are first needed: Lua makes them anew for every call of the script, and most need few.
local function make_times()
  -- How many times lie at or before a moment.
  local function up_to(w, moment)
    local low, high = 0, w.spent
    while low < high do
      local middle = floor((low + high) / 2)
      if time_at(w, middle) <= moment then
        low = middle + 1
      else
        high = middle
      end
    end
    return low
  end

  local times = {}

  function times.drop(w, gone)
    if gone > 0 then
      w.dirty = true
    end
    w.spent = w.spent - gone
    w.older = sub(w.older, gone * 8 + 1)
    if w.spent > 0 then
      w.leaves = time_at(w, 0) + w.window
    end
  end

  -- Drop expired units, and move units ahead of now back to now.
  function times.look(w, now)
    if w.spent > 0 and now >= w.leaves then
      times.drop(w, up_to(w, now - w.window))
    end
    if w.spent > 0 and now < w.newest then
      local kept = up_to(w, now)
      w.older = sub(w.older, 1, kept * 8) .. rep(pack("<i8", now), w.spent - kept - 1)
      w.newest = now
      w.leaves = time_at(w, 0) + w.window
      if w.surplus then
        w.surplus_at = min(w.surplus_at, now)
      end
      renew(w)
    end
  end

  function times.wait(w, now, room)
    times.look(w, now)
    local excess = w.spent - room
    if excess <= 0 then
      return 0
    elseif room < 0 then
      return NEVER
    end
    return time_at(w, excess - 1) + w.window - now
  end

  function times.add(w, now, units)
    if units <= 0 then
      return
    end
    times.look(w, now)
    local kept = min(units, MOST_TIMES)
    if w.spent > 0 then
      w.older = w.older .. pack("<i8", w.newest) .. rep(pack("<i8", now), kept - 1)
    else
      w.older = rep(pack("<i8", now), kept - 1)
      w.leaves = now + w.window
    end
    w.newest = now
    w.spent = w.spent + kept
    w.dirty = true
    if w.spent > MOST_TIMES then
      times.drop(w, w.spent - MOST_TIMES)
    end
  end

  function times.charge(w, now, units, resolution)
    local kept = min(units, resolution)
    times.look(w, now)
    local pushed_out = min(max(w.spent + kept - resolution, 0), kept)
    times.drop(w, pushed_out)
    times.add(w, now, kept)
    return kept - pushed_out
  end

  function times.remove(w, now, at, units)
    times.look(w, now)
    local first = up_to(w, at - 1)
    local last = first + units - 1
    if units <= 0 or last >= w.spent or time_at(w, first) ~= at or time_at(w, last) ~= at then
      return false
    end
    local all = w.older .. pack("<i8", w.newest)
    all = sub(all, 1, first * 8) .. sub(all, (last + 1) * 8 + 1)
    w.spent = w.spent - units
    w.dirty = true
    if w.spent == 0 then
      w.older, w.newest, w.leaves = "", 0, 0
    else
      w.newest = unpack_from("<i8", all, w.spent * 8 - 7)
      w.older = sub(all, 1, w.spent * 8 - 8)
      w.leaves = time_at(w, 0) + w.window
    end
    return true
  end

  return times
end

local made_times

local function times_ring()
  made_times = made_times or make_times()
  return made_times
end
