-- Quotas and permits.

-- The count of a quota is a ring, as in core/quotas.py: its slice began in 1970 and ends with the period. The caller's clock
-- chooses three successive periods, and the server's clock decides which of them it is.

local PERIOD_KEPT_US = 3600000000

local function become_quota(limit, ends, now)
  local place = 1
  while ends[place] and ends[place] <= now do
    place = place + 1
  end
  if not ends[place] then
    error("the clock of a worker is behind the server's by more than a period of a quota; synchronize it", 0)
  end
  limit.kind, limit.step, limit.span, limit.kept = ring, ends[place] + 1, 0, PERIOD_KEPT_US
end

-- Permits, as in core/concurrency.py, have the same functions as rings: at most `amount` concurrent requests of a key. Each key and rule has a sorted set. A
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
