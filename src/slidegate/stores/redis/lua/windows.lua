-- Windows and permits in Redis: a hash for each counted key, with a field for each rule and window, and for the permits of
-- each rule. A call reads each field at most once, works on the copy, and writes the changed ones at its end. Values have
-- the format of core.

-- The limits of a call, unpacked once and cached by their bytes: the field, the amount, three numbers, the resolution and
-- the modes.
local LIMIT_BYTES, FIELD_BYTES = 39, 8
local COUNT_DENIED, QUOTA, PERMITS, STRIKES, SHADOW = 1, 2, 4, 8, 16 -- modes; the first two may be combined, and the last two
local limits = {}

local function limit_at(arg, at, now)
  local text = sub(arg, at, at + LIMIT_BYTES - 1)
  local limit = limits[text]
  if not limit then
    limit = { field = sub(text, 1, FIELD_BYTES) }
    local first, second, third, modes
    limit.amount, first, second, third, limit.resolution, modes = unpack_from("<I4i8i8i8HB", text, 9)
    limit.count_denied = modes % QUOTA == COUNT_DENIED
    if modes >= STRIKES then
      limit.step, limit.span, limit.kept, limit.kind = first, second, 0, strikes
      limit.level, limit.shadow = sub(text, 29, 36), modes >= SHADOW
    elseif modes >= PERMITS then
      limit.field, limit.kind = "p" .. limit.field, permits
      limit.worker, limit.lease, limit.held = sub(text, 13, 20), second, third
    elseif modes >= QUOTA then
      become_quota(limit, { first, second, third }, now)
    else
      limit.step, limit.span, limit.kept, limit.kind = first, second, 0, ring
    end
    limits[text] = limit
  end
  return limit
end

local rows = {} -- by index in KEYS, then by field
local slack_ms -- how much longer than their contents keys live

-- Return the window of a key, as earlier requests of this call left it; a new one if there is none.
local function window(place, limit)
  rows[place] = rows[place] or {}
  local w = rows[place][limit.field]
  if not w then
    local value = redis.call("HGET", KEYS[place], limit.field)
    w = value and limit.kind.unpack(value) or limit.kind.new()
  end
  w.limit, w.kind = limit, limit.kind
  rows[place][limit.field] = w
  return w
end

-- Return a copy of a window, for a question that changes nothing.
local function copy_of(w)
  local copy = {}
  for name, value in pairs(w) do
    copy[name] = value
  end
  return copy
end

-- Reset the windows of a key, but not its permits; return whether any units were spent.
local function forget(place)
  local row, fields, found = rows[place] or {}, redis.call("HGETALL", KEYS[place]), false
  for at = 1, #fields, 2 do
    local value = fields[at + 1]
    if row[fields[at]] == nil and #fields[at] == FIELD_BYTES then
      row[fields[at]] = ring.unpack(value)
    end
  end
  for _, w in pairs(row) do
    if w.kind == ring then
      found = found or w.spent > 0
      ring.reset(w)
    end
  end
  rows[place] = row
  return found
end

-- Write the changed fields. If Redis accepts no writes, this raises its error.
local function save(now)
  for place, row in pairs(rows) do
    local ends = 0
    for field, w in pairs(row) do
      if w.dirty and w.spent == 0 then
        redis.call("HDEL", KEYS[place], field)
      elseif w.dirty then
        redis.call("HSET", KEYS[place], field, w.kind.pack(w))
        ends = max(ends, w.kind.expires(w, w.limit))
      end
    end
    if ends > 0 then
      live_for(KEYS[place], (ends - now) / 1000, slack_ms)
    end
  end
end

-- The operations on all windows of a question, as in core/decide.py: all of them are charged, or none.

local OK, LIMITED, TOO_LARGE, NOTHING, CHANGED, BANNED, UNSETTLED, FAILED = 0, 1, 2, 3, 4, 5, 6, 255
local HIT, PEEK, CHARGE, REFUND, RESET, INSPECT, STRIKE = 1, 2, 3, 4, 5, 6, 7

local function reading(w, limit, wait)
  local spent, leaves, newest = limit.kind.state(w, limit)
  return pack("<I8i8i8i8", spent, leaves, newest, wait)
end

-- An ask: the window `w`, or a copy of it if `imagined`, `limit`, `cost`, and `wait`, how long the question has to wait for
-- this window. No question contains a window twice.
local function asks_of(arg, at, many, now, imagined)
  local asks = {}
  for place = 1, many do
    local key, cost, rest = unpack_from("<HI4", arg, at)
    local limit = limit_at(arg, rest, now)
    at = rest + LIMIT_BYTES
    local w = window(key + 1, limit)
    w = imagined and copy_of(w) or w
    limit.kind.settle(w, limit, now)
    asks[place] = { w = w, limit = limit, cost = cost, wait = 0 }
  end
  return asks
end

-- Compute the waits without charging; return the status of the answer. A refusal for lack of a permit is UNSETTLED: a permit
-- may be released at any moment, so workers must not cache it.
local function look(asks, now)
  local status = OK
  for _, ask in ipairs(asks) do
    local wait = ask.limit.kind.wait(ask.w, ask.limit, now, ask.cost)
    ask.wait = wait
    if wait == NEVER or status == TOO_LARGE then
      status = TOO_LARGE
    elseif wait == OPEN or status == UNSETTLED then
      status = UNSETTLED
    elseif wait > 0 then
      status = LIMITED
    end
  end
  return status
end

local function answer(status, asks)
  local told = pack("<B", status)
  for _, ask in ipairs(asks) do
    told = told .. reading(ask.w, ask.limit, ask.wait)
  end
  return told
end

-- Charge, whatever the limits. Return an answer with each reading taken after its own charge, and the units counted.
local function charge(asks, now)
  local told, counted = pack("<B", OK), ""
  for _, ask in ipairs(asks) do
    counted = counted .. pack("<I4", ask.limit.kind.charge(ask.w, ask.limit, now, ask.cost))
    told = told .. reading(ask.w, ask.limit, 0)
  end
  return told, counted
end

local function hit(asks, now)
  local status, denied = look(asks, now), false
  if status == OK then
    return (charge(asks, now))
  end
  for _, ask in ipairs(status == TOO_LARGE and {} or asks) do
    if ask.limit.count_denied then
      ask.limit.kind.charge(ask.w, ask.limit, now, ask.cost)
      denied = true
    end
  end
  if denied then
    look(asks, now)
  end
  return answer(status, asks)
end

local ASK_BYTES, NOTE_BYTES = 6, 14

local function refund_one(arg, at, now)
  local key, mark, units, rest = unpack_from("<Hi8I4", arg, at)
  local limit = limit_at(arg, rest, now)
  local w = window(key + 1, limit)
  local dirty = w.dirty
  limit.kind.settle(w, limit, now)
  local changed = limit.kind.remove(w, now, mark, units)
  if not changed and limit.kind == ring then
    w.dirty = dirty -- a refund that finds nothing writes nothing
  end
  return changed
end

-- Refund, or renew permits; a window that fails stops no other.
local function refund(arg, at, many, now)
  local changed, why = false, nil
  for _ = 1, many do
    local fine, result = pcall(refund_one, arg, at, now)
    if fine then
      changed = changed or result
    else
      why = result
    end
    at = at + NOTE_BYTES + LIMIT_BYTES
  end
  if why then
    error(why, 0)
  end
  return pack("<B", changed and CHANGED or NOTHING)
end

-- Return the windows in the format of core, each preceded by its length.
local function inspect(asks)
  local told = pack("<B", OK)
  for _, ask in ipairs(asks) do
    local row = ask.limit.kind.pack(ask.w)
    told = told .. pack("<I4", #row) .. row
  end
  return told
end

-- Charge strikes, unless a ban that a shadow policy reported would be in force. Answer with the units and the level.
local function strike(ask, name, now)
  local level = redis.call("HGET", name, ask.limit.level) or ""
  if ask.limit.shadow and level ~= "" and level_until(level) > now then
    return pack("<B", NOTHING)
  end
  ring.charge(ask.w, ask.limit, now, ask.cost)
  return pack("<BI4", OK, ask.w.spent) .. level
end

local function judge(what, arg, at, many, now)
  if what == REFUND then
    return refund(arg, at, many, now)
  elseif what == RESET then
    return pack("<B", forget(many + 1) and CHANGED or NOTHING)
  end
  local asks = asks_of(arg, at, many, now, what == PEEK or what == INSPECT)
  if what == STRIKE then
    return strike(asks[1], KEYS[unpack_from("<H", arg, at) + 1], now)
  elseif what == INSPECT then
    return inspect(asks)
  elseif what == CHARGE then
    local told, counted = charge(asks, now)
    return told .. counted
  end
  return hit(asks, now)
end

-- Return the length of a request without its head and its ban keys.
local function bytes_of(what, many)
  if what == RESET then
    return 0
  end
  return many * ((what == REFUND and NOTE_BYTES or ASK_BYTES) + LIMIT_BYTES)
end

-- One call: ARGV[1] is the head, and ARGV[2] the requests, which are decided in order. Each starts with its operation, the
-- number of its asks, and the indexes of the KEYS whose bans refuse it. The answer is {time, answers ...}.

local now
now, slack_ms = unpack_from("<i8I4", ARGV[1])
now = time_of(now)
local replies = { pack("<i8", now) }
local requests = ARGV[2]
local banned = {} -- by index in KEYS

local function answer_to(what, many, bans, at)
  local told = ""
  for _ = 1, bans do
    local key
    key, at = unpack_from("<H", requests, at)
    banned[key] = banned[key] or ban_in_force(KEYS[key + 1], now)
    if banned[key] ~= "" then
      told = told .. pack("<Hc0", #banned[key], banned[key])
    end
  end
  return told ~= "" and pack("<B", BANNED) .. told or judge(what, requests, at, many, now)
end

local function failed(why)
  return pack("<B", FAILED) .. (type(why) == "table" and why.err or tostring(why))
end

local next_at = 1
while next_at <= #requests do
  local what, many, bans, at = unpack_from("<BHB", requests, next_at)
  next_at = at + 2 * bans + bytes_of(what, many)
  local fine, reply = pcall(answer_to, what, many, bans, at)
  replies[#replies + 1] = fine and reply or failed(reply)
end
local saved, why = pcall(save, now)
for place = 2, saved and 0 or #replies do
  local status = unpack_from("<B", replies[place])
  if status == OK or status == CHANGED then
    replies[place] = failed(why)
  end
end
return replies
