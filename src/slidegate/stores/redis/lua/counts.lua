-- Quotas and permits. They have the same functions as rings.

-- The count of a quota, as in core/quotas.py. `limit.ends` are the ends of three successive periods, chosen by the caller's
-- clock; the server's clock decides which period it is. Its time is Unix time, so the two need no offset.

local PERIOD_KEPT_US = 3600000000
local MAX_COUNT = 2 ^ 52
local PERIOD, PERIOD_BYTES = "<i8i8i8i8x", 33 -- a length that no ring has

local periods = {}

function periods.new()
  return { kind = periods, spent = 0, newest = 0, floor = -1 }
end

function periods.unpack(packed)
  local w, _ = periods.new(), nil
  w.newest, _, w.floor, w.spent = unpack_from(PERIOD, packed)
  return w
end

function periods.pack(w)
  return pack(PERIOD, w.newest, 0, w.floor, w.spent)
end

-- Advance the count to the period of now, unless it is in a later one.
function periods.settle(w, limit, now)
  local place = 1
  while limit.ends[place] and limit.ends[place] <= now do
    place = place + 1
  end
  local at = limit.ends[place]
  if not at then
    error("the clock of a worker is behind the server's by more than a period of a quota; synchronize it", 0)
  end
  if at > w.newest then
    w.dirty = w.dirty or w.newest > 0 -- a new count is stored when units are spent
    w.spent, w.newest = 0, at
  end
end

function periods.wait(w, limit, now, cost)
  local wanted = max(cost, 1)
  if wanted > limit.amount then
    return NEVER
  end
  return w.spent + wanted > limit.amount and w.newest - now or 0
end

function periods.charge(w, _, _, units)
  units = min(units, MAX_COUNT - w.spent)
  w.spent, w.dirty = w.spent + units, w.dirty or units > 0
  return units
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

function periods.reset(w, now, latest)
  if w.spent > 0 then
    w.spent, w.floor, w.dirty = 0, max(now, w.floor, latest), true
  end
end

function periods.expires(w)
  return w.newest > 0 and w.newest + PERIOD_KEPT_US or 0 -- even without units, so that an earlier period cannot return
end

-- Permits, as in core/concurrency.py: at most `amount` concurrent requests of a key. Each key and rule has a sorted set. A
-- permit is a member of it, the name of its worker and a serial number. Its score is its expiry time, which its worker
-- extends; a permit that is not renewed expires and is free again.

local OPEN = -2
local serials, slack_ms -- the next serial number; how much longer than their contents keys live

local permits = {}

function permits.read(name, now)
  return { kind = permits, name = name, spent = redis.call("ZCOUNT", name, "(" .. text_of(now), "+inf"), serial = 0 }
end

function permits.settle() end

function permits.wait(w, limit, _, cost)
  if cost > limit.amount then
    return NEVER
  end
  return w.spent + cost > limit.amount and OPEN or 0
end

-- The third number, a time for other limits, is the serial number of the last permit taken.
function permits.state(w)
  return w.spent, 0, w.serial
end

function permits.charge(w, limit, now)
  w.spent = w.spent + 1
  if w.imagined then
    return 1
  end
  redis.call("ZREMRANGEBYSCORE", w.name, "-inf", text_of(now))
  repeat
    w.serial, serials = serials, (serials + 1) % 4294967296
    local member = limit.worker .. pack("<I4", w.serial)
  until redis.call("ZADD", w.name, "NX", text_of(now + limit.lease), member) == 1
  live_for(w.name, limit.lease / 1000, slack_ms)
  return 1
end

function permits.remove(w, limit, now, serial)
  local member = limit.worker .. pack("<I4", serial)
  local ends = tonumber((redis.call("ZSCORE", w.name, member)))
  if not ends then
    return false
  end
  redis.call("ZREM", w.name, member)
  w.spent = ends > now and w.spent - 1 or w.spent
  return ends > now
end
