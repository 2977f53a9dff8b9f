-- The ring, as in core/ring.py: what one key has spent under one limit. A window is a table with the numbers of the head,
-- `older` (the entries before the newest, packed), and `dirty`, which is set when it differs from the stored value.
--
-- A limit has `amount`, `resolution`, `step`, `span`, and `kept`: how long it is stored after its units have left. Numbers are doubles. Times are microseconds below 2^53, which
-- is the year 2255, so their sums and differences are exact. So is `a % b`: the quotient is at least 1/b below the next
-- integer, which is more than its rounding error while a < 2^53.

local NEVER = -1
local MAX_UNITS = 4294967295
local HEAD, ENTRY, ENTRY_BYTES = "<I4I4i8i8", "<i8I4", 12

local ring = {}

function ring.new()
  return { kind = ring, spent = 0, units = 0, newest = 0, oldest = 0, older = "" }
end

function ring.unpack(packed)
  local w, rest = { kind = ring }, nil
  w.spent, w.units, w.newest, w.oldest, rest = unpack_from(HEAD, packed)
  w.older = sub(packed, rest)
  return w
end

function ring.pack(w)
  return pack(HEAD, w.spent, w.units, w.newest, w.oldest) .. w.older
end

local function moment_of(limit, now)
  return now - now % limit.step + limit.step - 1
end

local function clear(w)
  w.spent, w.units, w.newest, w.oldest, w.older = 0, 0, 0, 0, ""
end

-- Return all entries, packed, the newest last.
local function entries_of(w)
  return w.older .. pack(ENTRY, w.newest, w.units)
end

-- Replace all entries; the caller adjusts `spent`.
local function replace(w, entries)
  if entries == "" then
    clear(w)
  else
    w.newest, w.units = unpack_from(ENTRY, entries, #entries - ENTRY_BYTES + 1)
    w.oldest, w.older = unpack_from(ENTRY, entries), sub(entries, 1, -ENTRY_BYTES - 1)
  end
  w.dirty = true
end

-- Drop the entries up to `moment`; there must be at least one.
local function drop(w, moment)
  local entries, at = entries_of(w), 1
  while at < #entries do
    local oldest, units, rest = unpack_from(ENTRY, entries, at)
    if oldest > moment then
      break
    end
    w.spent, at = w.spent - units, rest
  end
  replace(w, sub(entries, at))
end

-- The server's clock stepped back: move units from the slices ahead of now into the current slice.
local function step_back(w, limit, now)
  local latest, entries, moved = moment_of(limit, now), entries_of(w), 0
  local at = #entries - ENTRY_BYTES + 1
  while at > 0 do
    local moment, units = unpack_from(ENTRY, entries, at)
    if moment < latest then
      break
    end
    moved, at = moved + units, at - ENTRY_BYTES
  end
  replace(w, sub(entries, 1, at + ENTRY_BYTES - 1) .. pack(ENTRY, latest, moved))
end

-- Drop expired entries, and handle a clock step. The other functions expect a settled ring.
function ring.settle(w, limit, now)
  if w.spent > 0 then
    if now >= w.oldest + limit.span then
      drop(w, now - limit.span)
    end
    if w.newest - now >= limit.step then
      step_back(w, limit, now)
    end
  end
end

-- Return how long a cost has to wait, in microseconds.
function ring.wait(w, limit, now, cost)
  local wanted = max(cost, 1)
  local excess = w.spent + wanted - limit.amount
  if wanted > limit.amount then
    return NEVER
  elseif excess > 0 then
    local moment, at = w.oldest, 1
    while excess > 0 do
      local units
      if at > #w.older then
        moment = w.newest
        break
      end
      moment, units, at = unpack_from(ENTRY, w.older, at)
      excess = excess - units
    end
    return moment + limit.span - now
  end
  return 0
end

-- Merge the oldest entry into the next one, so that its units expire with those.
local function merge_oldest(w)
  local entries = entries_of(w)
  local _, first = unpack_from(ENTRY, entries)
  local moment, second = unpack_from(ENTRY, entries, 1 + ENTRY_BYTES)
  replace(w, pack(ENTRY, moment, first + second) .. sub(entries, 1 + 2 * ENTRY_BYTES))
end

-- Charge units, whatever the limit; return how many were counted.
function ring.charge(w, limit, now, units)
  units = min(units, MAX_UNITS - w.spent)
  if units == 0 then
    return 0
  end
  if w.spent > 0 and now <= w.newest then
    w.units = w.units + units
  else
    if w.spent > 0 then
      w.older = w.older .. pack(ENTRY, w.newest, w.units)
    end
    w.newest, w.units = moment_of(limit, now), units
    if w.spent == 0 then
      w.oldest = w.newest
    end
  end
  w.spent, w.dirty = w.spent + units, true
  if w.spent > limit.amount and #w.older > 2 * limit.resolution * ENTRY_BYTES then
    merge_oldest(w)
  end
  return units
end

-- Refund units of the entry `mark`, as many as are still there; false if none is.
function ring.remove(w, now, mark, units)
  local entries = w.spent > 0 and units > 0 and entries_of(w) or ""
  local at, moment, there = #entries + 1, nil, nil
  repeat
    at = at - ENTRY_BYTES
    if at < 1 then
      return false
    end
    moment, there = unpack_from(ENTRY, entries, at)
  until moment <= mark
  if moment ~= mark then
    return false
  end
  units = min(units, there)
  local left = units < there and pack(ENTRY, mark, there - units) or ""
  w.spent = w.spent - units
  replace(w, sub(entries, 1, at - 1) .. left .. sub(entries, at + ENTRY_BYTES))
  return true
end

-- Return the state: the units spent, when the oldest expire, and the newest moment.
function ring.state(w, limit)
  return w.spent, w.spent > 0 and w.oldest + limit.span or 0, w.newest
end

function ring.reset(w)
  clear(w)
  w.dirty = true
end

-- Return when the ring can be deleted.
function ring.expires(w, limit)
  return w.newest + limit.span + limit.kept
end

-- The strikes of a key under a policy: a ring that is stored behind the time at which it expires.
local strikes = setmetatable({}, { __index = ring })

function strikes.unpack(packed)
  return ring.unpack(sub(packed, 9))
end

function strikes.pack(w)
  return pack("<i8", ring.expires(w, w.limit)) .. ring.pack(w)
end
