-- The ring, as in core/ring.py: what one key has spent under one limit. A window is a table with the numbers of the head,
-- and `older`: the entries before the newest, packed. What happens with every hit works on the packed entries, and all
-- else by `rebuild`.
--
-- A limit has `amount`, `resolution`, `step`, `span`, and `kept`: how long it is stored after its units have left. Numbers
-- are doubles. Times are microseconds below 2^53, which is the year 2255, so their sums and differences are exact. So is
-- `a % b`: the quotient is at least 1/b below the next integer, which is more than its rounding error while a < 2^53.

local NEVER = -1
local MAX_UNITS = 4294967295
local HEAD = "<I4I4i8i8"
local HEAD_BYTES = 24
local ENTRY = "<i8I4"
local ENTRY_BYTES = 12

local ring = {}

local function moment_of(limit)
  return now - now % limit.step + limit.step - 1
end

-- Return all entries, packed, the newest last.
local function entries_of(w)
  return w.older .. pack(ENTRY, w.newest, w.units)
end

-- Replace each entry by the moment and the units that `change` returns for it. Moments must stay in order; entries of
-- one moment become one, and those without units go.
local function rebuild(w, change)
  local entries, kept = entries_of(w), {}
  w.spent = 0
  for at = 1, #entries, ENTRY_BYTES do
    local moment, units = change(unpack_from(ENTRY, entries, at))
    local last = kept[#kept]
    w.spent = w.spent + units
    if last and last.moment == moment then
      last.units = last.units + units
    elseif units > 0 then
      kept[#kept + 1] = { moment = moment, units = units }
    end
  end
  local newest = table.remove(kept) or { moment = 0, units = 0 }
  w.newest, w.units, w.oldest = newest.moment, newest.units, (kept[1] or newest).moment
  for place, entry in ipairs(kept) do
    kept[place] = pack(ENTRY, entry.moment, entry.units)
  end
  w.older = table.concat(kept)
end

-- Drop the entries up to `moment`, of which there is at least one, but not the newest. Under load this happens with
-- every hit.
local function drop(w, moment)
  local entries, at, units = entries_of(w), 1, nil
  repeat
    w.oldest, units, at = unpack_from(ENTRY, entries, at)
    w.spent = w.spent - units
    w.oldest = unpack_from("<i8", entries, at)
  until w.oldest > moment
  w.older = sub(w.older, at)
end

-- Return the ring in a stored value, without the units that have left. If the server's clock has stepped back, moments in
-- the future are moved to now. `differs` says that something has changed: a refusal writes it, so that no later step of
-- the clock brings units back.
function ring.read(packed, limit)
  local w = { spent = 0, units = 0, newest = 0, oldest = 0, older = "" }
  if packed == "" then
    return w
  end
  local spent, units, newest, oldest = unpack_from(HEAD, packed)
  w.differs = now >= oldest + limit.span or newest - now >= limit.step
  if now >= newest + limit.span then
    return w
  end
  w.spent, w.units, w.newest, w.oldest, w.older = spent, units, newest, oldest, sub(packed, HEAD_BYTES + 1)
  if now >= oldest + limit.span then
    drop(w, now - limit.span)
  end
  if newest - now >= limit.step then
    local latest = moment_of(limit)
    rebuild(w, function(moment, there)
      return min(moment, latest), there
    end)
  end
  return w
end

-- Return the value to store; "" for an empty ring.
function ring.pack(w)
  return w.spent > 0 and pack(HEAD, w.spent, w.units, w.newest, w.oldest) .. w.older or ""
end

-- Return how long a cost has to wait, in microseconds.
function ring.wait(w, limit, cost)
  local wanted = max(cost, 1)
  local excess = w.spent + wanted - limit.amount
  if wanted > limit.amount then
    return NEVER
  elseif excess <= 0 then
    return 0
  end
  local entries, at, moment, units = entries_of(w), 1, nil, nil
  repeat
    moment, units, at = unpack_from(ENTRY, entries, at)
    excess = excess - units
  until excess <= 0
  return moment + limit.span - now
end

-- Charge units, whatever the limit; return how many were counted.
function ring.charge(w, limit, units)
  units = min(units, MAX_UNITS - w.spent)
  if units == 0 then
    return 0
  elseif w.spent > 0 and now <= w.newest then
    w.units = w.units + units
  else
    w.older = w.spent > 0 and entries_of(w) or ""
    w.newest, w.units = moment_of(limit), units
    w.oldest = w.spent > 0 and w.oldest or w.newest
  end
  w.spent = w.spent + units
  if w.spent > limit.amount and #w.older > 2 * limit.resolution * ENTRY_BYTES then
    local second = unpack_from("<i8", w.older, 1 + ENTRY_BYTES)
    rebuild(w, function(moment, there)
      return max(moment, second), there -- the units of the oldest entry leave with those of the next one
    end)
  end
  return units
end

-- Refund units of the entry `mark`, as many as are still there; return whether there were any.
function ring.remove(w, mark, units)
  local before = w.spent
  rebuild(w, function(moment, there)
    return moment, moment == mark and max(there - units, 0) or there
  end)
  return w.spent < before
end

-- Return the state: the units spent, when the oldest expire, and the newest moment.
function ring.state(w, limit)
  return w.spent, w.spent > 0 and w.oldest + limit.span or 0, w.newest
end

-- Return when the ring can be deleted.
function ring.expires(w, limit)
  return w.newest + limit.span + limit.kept
end
