-- Permits, as core/concurrency.py: at most `amount` requests of a key at a time. They lie in a sorted set of their own
-- for each key and rule. Each permit is a member, the name of its worker and a serial, and its score is the moment until
-- which it is held unless its worker renews it. So a permit that nobody renews is free when that moment has come.
--
-- The table of a set is asked as a window is. `taken` holds the members to write at the end of the call, and until when
-- they are held; `left` holds those to remove.

local OPEN = -2
local serials -- the serial of the next permit
local made_permits

local function make_permits()
  local p = {}

  local function text_of(moment)
    return string.format("%.0f", moment)
  end

  function p.read(key, now)
    local held = redis.call("ZCOUNT", key, "(" .. text_of(now), "+inf")
    return { permits = true, key = key, spent = held, serial = 0, taken = {}, left = {} }
  end

  function p.copy(w)
    return { permits = true, key = w.key, spent = w.spent, serial = 0, taken = {}, left = {} }
  end

  function p.settle() end

  function p.wait(w, limit, _, cost, ahead)
    if ahead + cost > limit.amount then
      return NEVER
    end
    return w.spent + ahead + cost > limit.amount and OPEN or 0
  end

  -- The serial of the permit that was taken last stands where others have a moment.
  function p.state(w)
    return w.spent, 0, w.serial
  end

  -- Until when a member is held; nil where it is no member.
  local function held_until(w, member)
    if w.taken[member] or w.left[member] then
      return w.taken[member]
    end
    return tonumber((redis.call("ZSCORE", w.key, member)))
  end

  function p.add(w, limit, now)
    local member
    repeat
      w.serial = serials
      member = limit.worker .. pack("<I4", serials)
      serials = (serials + 1) % 4294967296
    until not held_until(w, member)
    w.taken[member] = now + limit.lease
    w.spent, w.dirty = w.spent + 1, true
  end

  function p.charge(w, limit, now)
    p.add(w, limit, now)
    return 1
  end

  function p.let_go(w, member, now)
    local ends = held_until(w, member)
    if not ends then
      return false
    end
    w.taken[member], w.left[member], w.dirty = nil, true, true
    if ends > now then
      w.spent = w.spent - 1
    end
    return ends > now
  end

  function p.save(w, now, slack_ms)
    redis.call("ZREMRANGEBYSCORE", w.key, "-inf", text_of(now))
    for member in pairs(w.left) do
      redis.call("ZREM", w.key, member)
    end
    local ends = 0
    for member, until_us in pairs(w.taken) do
      redis.call("ZADD", w.key, text_of(until_us), member)
      ends = max(ends, until_us)
    end
    local left_ms = math.ceil((ends - now) / 1000)
    if ends > 0 and redis.call("PTTL", w.key) < left_ms then
      redis.call("PEXPIRE", w.key, left_ms + slack_ms)
    end
    w.taken, w.left = {}, {}
  end

  return p
end

local function permits()
  made_permits = made_permits or make_permits()
  return made_permits
end
