-- The operations on all windows of a demand at once, as core/demand.py: all of them are charged or none.

local OK, LIMITED, TOO_LARGE, NOTHING, CHANGED, UNSETTLED, LET_GO = 0, 1, 2, 3, 4, 6, 7
local COUNT_DENIED = 1

local HIT, PEEK, CHARGE, REFUND, RESET, LOOK, GLANCE, RENEW, INSPECT = 1, 2, 3, 4, 5, 6, 7, 8, 9

local function make_judge()
  -- An ask: window `w`, `limit`, `cost`, `ahead` (units that the demand asks of the same window before).
  --
  -- How long each window holds the demand up, and the longest; NEVER as the longest if one does for ever, OPEN if one
  -- does until a place is handed back.
  local function waits_of(asks, now)
    local waits, longest, negative = {}, 0, 0
    for place, ask in ipairs(asks) do
      local wait = ring_of(ask.w).wait(ask.w, now, ask.limit.amount - ask.ahead - max(ask.cost, 1))
      waits[place] = wait
      longest = max(longest, wait)
      if wait < 0 then
        negative = (wait == NEVER or negative == NEVER) and NEVER or OPEN
      end
    end
    return waits, negative < 0 and negative or longest
  end

  local function reading(w, wait)
    return pack("<I8i8i8i8I4", w.spent, w.leaves, w.newest, wait, w.serial)
  end

  local function answer(status, asks, waits, notes)
    local parts = { pack("<B", status) }
    for place, ask in ipairs(asks) do
      parts[place + 1] = reading(ask.w, waits[place])
    end
    parts[#parts + 1] = notes
    return table.concat(parts)
  end

  -- Which refusal it is: UNSETTLED where a place is missing. It is handed back at any moment, so no worker may give such
  -- a refusal from memory.
  local function limited(waits)
    for _, wait in ipairs(waits) do
      if wait == OPEN then
        return UNSETTLED
      end
    end
    return LIMITED
  end

  local function hit(asks, now)
    local waits, longest = waits_of(asks, now)
    if longest == 0 then
      local parts = { pack("<B", OK) }
      for place, ask in ipairs(asks) do
        ring_of(ask.w).add(ask.w, now, ask.cost)
        parts[place + 1] = reading(ask.w, 0)
      end
      return table.concat(parts)
    elseif longest == NEVER then
      return answer(TOO_LARGE, asks, waits)
    end
    local denied = false
    for _, ask in ipairs(asks) do
      if ask.limit.modes == COUNT_DENIED then
        ring_of(ask.w).charge(ask.w, now, ask.cost, ask.limit.resolution)
        denied = true
      end
    end
    if denied then
      waits = waits_of(asks, now)
    end
    return answer(limited(waits), asks, waits)
  end

  -- Say which windows have room, and charge nothing: a part of a demand whose other keys lie elsewhere. It is a look
  -- all the same: units ahead of now move back, unless it is only a glance.
  local function look(asks, now)
    local waits, longest = waits_of(asks, now)
    return answer(longest == 0 and OK or longest == NEVER and TOO_LARGE or limited(waits), asks, waits)
  end

  local function charge(asks, now)
    local zeros, notes = {}, {}
    for place, ask in ipairs(asks) do
      local kept = ring_of(ask.w).charge(ask.w, now, ask.cost, ask.limit.resolution)
      zeros[place], notes[place] = 0, pack("<i8I4", now, kept)
    end
    return answer(OK, asks, zeros, table.concat(notes))
  end

  local function refund(arg, at, many, now)
    local found = {}
    for place = 1, many do
      local key, serial, spent_at, units, rest = unpack_from("<HI4i8I4", arg, at)
      local limit = limit_at(arg, rest)
      found[place] = { read(key + 1, limit, now), serial, spent_at, units, limit }
      at = rest + LIMIT_BYTES
    end
    local changed, let_go = false, false
    for _, note in ipairs(found) do
      local w, serial, spent_at, units, limit = unpack(note)
      if limit.worker then
        let_go = placing().let_go(w, limit.worker .. pack("<I4", serial), now) or let_go
        w = false
      end
      local ring = w and ring_of(w)
      if w and w.ends then
        ring.enter(w, limit.ends, now)
      elseif w then
        ring.look(w, now) -- where the clock has stepped back, the window is another one
      end
      if w and w.serial == serial then
        changed = ring.remove(w, now, spent_at, units) or changed
      end
    end
    return pack("<B", changed and CHANGED or let_go and LET_GO or NOTHING)
  end

  -- Renew places: the place of their key, the limit, and the serials.
  local function renew_places(arg, at, many, now)
    local key, rest = unpack_from("<H", arg, at)
    local limit = limit_at(arg, rest)
    local w = read(key + 1, limit, now)
    return pack("<B", OK) .. placing().renew(w, limit, rest + LIMIT_BYTES, arg, many, now)
  end

  local function forget(place)
    local found = redis.call("DEL", KEYS[place]) > 0
    for _, w in pairs(rows[place] or {}) do
      found = found or (w and w.spent > 0)
    end
    rows[place] = {}
    return pack("<B", found and CHANGED or NOTHING)
  end

  -- The windows as rows have them, each behind its length; places as a zero and how many are taken.
  local function inspect(asks)
    local parts = { pack("<B", OK) }
    for place, ask in ipairs(asks) do
      local row = ask.w.places and pack("<BI8", 0, ask.w.spent) or pack_ring(ask.w)
      parts[place + 1] = pack("<I4", #row) .. row
    end
    return table.concat(parts)
  end

  local function copied(w)
    local twin = {}
    for name, value in pairs(w) do
      twin[name] = value
    end
    return twin
  end

  -- A copy of a window for a look, the same one each time it is asked for.
  local function imagine(place, limit, now, copies)
    local name = place .. limit.field
    local w = copies[name]
    if not w then
      local known = read(place, limit, now)
      if limit.worker then
        w = placing().copy(known)
        w.worker, w.lease = limit.worker, limit.lease
      else
        w = known and copied(known) or new_window(limit, limit.exact)
      end
      w.serial = w.serial or 0
    end
    copies[name] = fitting(w, limit, now)
    return copies[name]
  end

  local function asks_of(arg, at, many, now, imagined)
    local asks, units, copies = {}, {}, {}
    for place = 1, many do
      local key, cost, rest = unpack_from("<HI4", arg, at)
      local limit = limit_at(arg, rest)
      at = rest + LIMIT_BYTES
      local w = imagined and imagine(key + 1, limit, now, copies) or window(key + 1, limit, now)
      asks[place] = { w = w, limit = limit, cost = cost, ahead = units[w] or 0 }
      units[w] = (units[w] or 0) + cost
    end
    return asks
  end

  return function(what, arg, at, many, now)
    if what == REFUND then
      return refund(arg, at, many, now)
    elseif what == RESET then
      return forget(many + 1)
    elseif what == RENEW then
      return renew_places(arg, at, many, now)
    end
    local asks = asks_of(arg, at, many, now, what == PEEK or what == GLANCE or what == INSPECT)
    if what == INSPECT then
      return inspect(asks)
    end
    if what == CHARGE then
      return charge(asks, now)
    end
    return ((what == LOOK or what == GLANCE) and look or hit)(asks, now)
  end
end

local judge

-- Most requests: one limit without modes.
local function hit_one(w, limit, cost, now)
  local ring = ring_of(w)
  local wait = ring.wait(w, now, limit.amount - max(cost, 1))
  if wait == 0 then
    ring.add(w, now, cost)
    return pack("<BI8i8i8i8I4", OK, w.spent, w.leaves, w.newest, 0, w.serial)
  end
  return pack("<BI8i8i8i8I4", wait == NEVER and TOO_LARGE or LIMITED, w.spent, w.leaves, w.newest, wait, w.serial)
end

local ASK_BYTES, NOTE_BYTES, SERIAL_BYTES = 6, 18, 4

-- How many bytes a request takes behind its head.
local function bytes_of(what, many)
  if what == RESET then
    return 0
  elseif what == RENEW then
    return 2 + LIMIT_BYTES + many * SERIAL_BYTES
  end
  return many * ((what == REFUND and NOTE_BYTES or ASK_BYTES) + LIMIT_BYTES)
end

local function handle(what, many, arg, at, now)
  if what == HIT and many == 1 then
    local key, cost, rest = unpack_from("<HI4", arg, at)
    local limit = limit_at(arg, rest)
    local w = window(key + 1, limit, now)
    if limit.modes == 0 then
      return hit_one(w, limit, cost, now)
    end
  end
  judge = judge or make_judge()
  return judge(what, arg, at, many, now)
end
