-- Windows in Redis: a hash for each key that is counted, a field for each rule and window. A call reads each at most
-- once, works on the copy, and writes what has changed at its end.

-- The limits of a call, each unpacked once. A limit takes 41 bytes, and is found again by them.
local LIMIT_BYTES = 41
local QUOTA = 2 -- a mode, to which that of counting refusals may be added: no window, but a period
local PLACES = 4 -- a mode: no window, but places; the worker and the length of its lease stand where others have times
local limits = {}

local function limit_at(arg, at)
  local text = sub(arg, at, at + LIMIT_BYTES - 1)
  local limit = limits[text]
  if not limit then
    limit = { field = sub(text, 1, 8) }
    local last_end -- of a quota
    limit.amount, limit.window, limit.resolution, limit.slice, limit.slices, limit.modes, last_end =
      unpack_from("<I4i8Hi8HBi8", text, 9)
    limit.exact = limit.amount <= limit.resolution
    if limit.modes == PLACES then
      limit.worker, limit.lease, limit.window = sub(text, 13, 20), limit.slice, 0
    elseif limit.modes >= QUOTA then
      limit.ends = { limit.window, limit.slice, last_end }
      limit.modes, limit.window, limit.slice = limit.modes % QUOTA, 0, 0
    end
    limits[text] = limit
  end
  return limit
end

local rows = {} -- by place in KEYS, then by field

local function read(place, limit, now)
  local row = rows[place]
  if not row then
    row = {}
    rows[place] = row
  end
  local w = row[limit.field]
  if limit.worker then
    w = w or placing().read(KEYS[place], now)
    w.worker, w.lease = limit.worker, limit.lease
    row[limit.field] = w
    return w
  end
  if w == nil then
    local value = redis.pcall("HGET", KEYS[place], limit.field)
    if type(value) == "table" then
      error(value.err, 0)
    elseif value then
      local version, serial, from = unpack_from("<BI4", value)
      if version ~= VERSION then
        error("a window was written by another version of slidegate", 0)
      end
      w = unpack_ring(value, limit, from)
      w.serial = serial
    else
      w = false
    end
    row[limit.field] = w
  end
  return w
end

-- The window as the ring that the limit needs now, or the count of a quota in the period of now.
local function fitting(w, limit, now)
  if limit.ends then
    periods_ring().enter(w, limit.ends, now)
    return w
  elseif w.places or w.exact == limit.exact then
    return w
  end
  return converted(w, limit, now)
end

-- The window of a key, new if there is none.
local function window(place, limit, now)
  local w = read(place, limit, now)
  if not w then
    w = new_window(limit, limit.exact)
    w.serial = serials
    serials = (serials + 1) % 4294967296
  end
  w = fitting(w, limit, now)
  rows[place][limit.field] = w
  return w
end

-- When nothing is left in a window; 0 if that is so already.
local function expiry(w)
  local ends = w.spent > 0 and w.newest + w.span or 0
  if w.ends then
    return w.newest > 0 and w.newest + KEPT or 0 -- also without units: the period before must not come again
  end
  if w.surplus then
    ends = max(ends, w.surplus_at + w.window)
  end
  return ends
end

-- Write the rows that have changed. If Redis takes no writes, this raises its error.
local function save(now, slack_ms)
  for place, row in pairs(rows) do
    local set, gone, ends = { "HSET", KEYS[place] }, { "HDEL", KEYS[place] }, 0
    for field, w in pairs(row) do
      if w and w.dirty then
        w.dirty = false
        local expires = w.places and 0 or expiry(w)
        ends = max(ends, expires)
        if w.places then
          placing().save(w, now, slack_ms)
        elseif expires > 0 then
          set[#set + 1] = field
          set[#set + 1] = pack("<BI4", VERSION, w.serial) .. pack_ring(w)
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
      if redis.call("PTTL", KEYS[place]) < left_ms then
        redis.call("PEXPIRE", KEYS[place], left_ms + slack_ms)
      end
    end
  end
end
