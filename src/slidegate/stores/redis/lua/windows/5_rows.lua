-- Windows in Redis: a hash for each key that is counted, a field for each rule and window. A call reads each at most
-- once, works on the copy, and writes what has changed at its end. A stored value is a version and the bytes of core.

local VERSION = 2
local PERIOD_BYTES = 33 -- a ring is longer

-- The limits of a call, each unpacked once, and found again by its bytes: the field, the amount, three numbers, the
-- resolution and the modes.
local LIMIT_BYTES = 39
local COUNT_DENIED, QUOTA, PLACES = 1, 2, 4 -- modes; the first two may be added up
local limits = {}

local function limit_at(arg, at)
  local text = sub(arg, at, at + LIMIT_BYTES - 1)
  local limit = limits[text]
  if not limit then
    limit = { field = sub(text, 1, 8) }
    local first, second, third, modes
    limit.amount, first, second, third, limit.resolution, modes = unpack_from("<I4i8i8i8HB", text, 9)
    limit.count_denied = modes % QUOTA == COUNT_DENIED
    if modes >= PLACES then
      limit.worker, limit.lease, limit.kind = sub(text, 13, 20), second, placing()
    elseif modes >= QUOTA then
      limit.ends, limit.kind = { first, second, third }, periods_of_quotas()
    else
      limit.step, limit.span, limit.kind = first, second, ring
    end
    limits[text] = limit
  end
  return limit
end

local rows = {} -- by place in KEYS, then by field

local function row_at(place)
  local row = rows[place]
  if not row then
    row = {}
    rows[place] = row
  end
  return row
end

local function unpack_window(value)
  if byte(value) ~= VERSION then
    error("a window was written by another version of slidegate", 0)
  end
  return #value == PERIOD_BYTES and periods_of_quotas().unpack(value, 2) or ring.unpack(value, 2)
end

-- The window of a key as it was when it was last asked; false where there is none.
local function read(place, limit, now)
  local row = row_at(place)
  local w = row[limit.field]
  if w == nil then
    if limit.worker then
      w = placing().read(KEYS[place], now)
    else
      local value = redis.pcall("HGET", KEYS[place], limit.field)
      if type(value) == "table" then
        error(value.err, 0)
      end
      w = value and unpack_window(value)
    end
    row[limit.field] = w
  end
  return w
end

-- The window of a key at a moment, new if there is none.
local function window(place, limit, now)
  local w = read(place, limit, now) or limit.kind.new()
  limit.kind.settle(w, limit, now)
  w.limit = limit
  rows[place][limit.field] = w
  return w
end

-- Forget what a key has spent in its windows; return whether that was anything.
local function forget(place, now)
  local row, fields, found = row_at(place), redis.call("HGETALL", KEYS[place]), false
  for at = 1, #fields, 2 do
    if row[fields[at]] == nil then
      row[fields[at]] = unpack_window(fields[at + 1])
    end
  end
  for _, w in pairs(row) do
    if w and not w.places then
      found = found or w.spent > 0
      local kind = w.dated and periods_of_quotas() or ring
      kind.reset(w, now)
    end
  end
  return found
end

-- Write the rows that have changed. If Redis takes no writes, this raises its error.
local function save(now, slack_ms)
  for place, row in pairs(rows) do
    local set, gone, ends = { "HSET", KEYS[place] }, { "HDEL", KEYS[place] }, 0
    for field, w in pairs(row) do
      if w and w.dirty then
        w.dirty = false
        local kind, expires = w.dated and periods_of_quotas() or ring, 1 -- what is only forgotten keeps its TTL
        if w.limit and not w.places then
          expires = kind.expires(w, w.limit)
          ends = max(ends, expires)
        end
        if w.places then
          placing().save(w, now, slack_ms)
        elseif expires > 0 then
          set[#set + 1] = field
          set[#set + 1] = pack("<B", VERSION) .. kind.pack(w)
        else
          gone[#gone + 1] = field
        end
      end
    end
    if #gone > 2 then
      redis.call(unpack(gone))
    end
    if #set > 2 then
      redis.call(unpack(set))
      local left_ms = math.ceil((ends - now) / 1000)
      if ends > 0 and redis.call("PTTL", KEYS[place]) < left_ms then
        redis.call("PEXPIRE", KEYS[place], left_ms + slack_ms)
      end
    end
  end
end
