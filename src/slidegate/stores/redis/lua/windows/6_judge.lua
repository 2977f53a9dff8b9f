-- The operations on all windows of a demand at once, as core/decide.py: all of them are charged or none.

local OK, LIMITED, TOO_LARGE, NOTHING, CHANGED, UNSETTLED, LET_GO = 0, 1, 2, 3, 4, 6, 7
local HIT, PEEK, CHARGE, REFUND, RESET, LOOK, GLANCE, RENEW, INSPECT = 1, 2, 3, 4, 5, 6, 7, 8, 9
local FIRST = 16 -- added to HIT or LOOK: the request is the first of those who wait

local function reading(w, limit, wait)
  local spent, leaves, newest = limit.kind.state(w, limit)
  return pack("<I8i8i8i8", spent, leaves, newest, wait)
end

local function make_judge()
  -- An ask: window `w`, `limit`, `cost`, `ahead` (units that the demand asks of the same window before).
  --
  -- How long each window holds the demand up; the longest of that; and the status of the answer. A refusal is UNSETTLED
  -- where it may end at any moment: for want of a place, or of units that are kept for those who wait. No worker may
  -- give such a refusal from memory.
  local function waits_of(asks, now, first_in_line)
    local waits, longest, status = {}, 0, OK
    for place, ask in ipairs(asks) do
      local wait, kept = ask.limit.kind.wait(ask.w, ask.limit, now, ask.cost, ask.ahead, first_in_line)
      waits[place], longest = wait, max(longest, wait)
      if wait == NEVER or status == TOO_LARGE then
        status = TOO_LARGE
      elseif wait == OPEN or kept or status == UNSETTLED then
        status = UNSETTLED
      elseif wait > 0 then
        status = LIMITED
      end
    end
    return waits, longest, status
  end

  local function answer(status, asks, waits)
    local parts = { pack("<B", status) }
    for place, ask in ipairs(asks) do
      parts[place + 1] = reading(ask.w, ask.limit, waits[place])
    end
    return table.concat(parts)
  end

  -- Keep what comes free for the first in line, until it asks again.
  local function reserve(asks, waits, until_at)
    for place, ask in ipairs(asks) do
      if waits[place] > 0 and not ask.w.dated then
        ask.w.reserved, ask.w.dirty = until_at, true
      end
    end
  end

  -- Say which windows have room, and charge nothing: a part of a demand whose other keys lie elsewhere. It is a look
  -- all the same: units ahead of now move back, unless it is only a glance.
  local function look(asks, now, first_in_line)
    local waits, longest, status = waits_of(asks, now, first_in_line)
    if first_in_line and longest > 0 and status ~= TOO_LARGE then
      reserve(asks, waits, now + min(longest, KEPT_US) + GRACE_US)
    end
    return answer(status, asks, waits), status
  end

  local function hit(asks, now, first_in_line)
    local told, status = look(asks, now, first_in_line)
    if status == OK then
      local parts = { pack("<B", OK) }
      for place, ask in ipairs(asks) do
        ask.limit.kind.add(ask.w, ask.limit, now, ask.cost)
        parts[place + 1] = reading(ask.w, ask.limit, 0)
      end
      return table.concat(parts)
    elseif status == TOO_LARGE then
      return told
    end
    local denied = false
    for _, ask in ipairs(asks) do
      if ask.limit.count_denied and not first_in_line then
        ask.limit.kind.charge(ask.w, ask.limit, now, ask.cost)
        denied = true
      end
    end
    return denied and answer(status, asks, (waits_of(asks, now, first_in_line))) or told
  end

  -- The readings, then how much of each cost was counted.
  local function charge(asks, now)
    local parts, counted = { pack("<B", OK) }, {}
    for place, ask in ipairs(asks) do
      counted[place] = pack("<I4", ask.limit.kind.charge(ask.w, ask.limit, now, ask.cost))
      parts[place + 1] = reading(ask.w, ask.limit, 0)
    end
    return table.concat(parts) .. table.concat(counted)
  end

  local function refund(arg, at, many, now)
    local changed, let_go = false, false
    for _ = 1, many do
      local key, mark, spent_at, units, rest = unpack_from("<Hi8i8I4", arg, at)
      local limit = limit_at(arg, rest)
      at = rest + LIMIT_BYTES
      if limit.worker then
        let_go = placing().let_go(read(key + 1, limit, now), limit.worker .. pack("<I4", mark), now) or let_go
      elseif read(key + 1, limit, now) then
        local dirty = rows[key + 1][limit.field].dirty
        local w = window(key + 1, limit, now)
        if limit.kind.remove(w, now, spent_at, mark, units) then
          changed = true
        else
          w.dirty = dirty -- a refund that finds nothing writes nothing
        end
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

  -- The windows in the bytes of core, each behind its length; places as how many are taken.
  local function inspect(asks)
    local parts = { pack("<B", OK) }
    for place, ask in ipairs(asks) do
      local row = ask.w.places and pack("<I4", ask.w.spent) or ask.limit.kind.pack(ask.w)
      parts[place + 1] = pack("<I4", #row) .. row
    end
    return table.concat(parts)
  end

  -- A copy of a window for a look, the same one each time it is asked for.
  local function imagine(place, limit, now, copies)
    local name = place .. limit.field
    local w = copies[name]
    if not w then
      local known = read(place, limit, now)
      if limit.worker then
        w = placing().copy(known)
      else
        w = limit.kind.new()
        for number, value in pairs(known or {}) do
          w[number] = value
        end
      end
      copies[name] = w
    end
    limit.kind.settle(w, limit, now)
    return w
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

  return function(what, arg, at, many, now, first_in_line)
    if what == REFUND then
      return refund(arg, at, many, now)
    elseif what == RESET then
      return pack("<B", forget(many + 1, now) and CHANGED or NOTHING)
    elseif what == RENEW then
      return renew_places(arg, at, many, now)
    end
    local asks = asks_of(arg, at, many, now, what == PEEK or what == GLANCE or what == INSPECT)
    if what == INSPECT then
      return inspect(asks)
    elseif what == CHARGE then
      return charge(asks, now)
    elseif what == LOOK or what == GLANCE then
      return (look(asks, now, first_in_line))
    end
    return hit(asks, now, first_in_line)
  end
end

local judge

-- Most requests: one limit that counts no refusals.
local function hit_one(place, limit, cost, now)
  local w, kind = window(place, limit, now), limit.kind
  local wait, kept = kind.wait(w, limit, now, cost, 0)
  if wait == 0 then
    kind.add(w, limit, now, cost)
    return pack("<B", OK) .. reading(w, limit, 0)
  end
  local status = wait == NEVER and TOO_LARGE or (wait == OPEN or kept) and UNSETTLED or LIMITED
  return pack("<B", status) .. reading(w, limit, wait)
end

local ASK_BYTES, NOTE_BYTES, SERIAL_BYTES = 6, 22, 4

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
    if not limit.count_denied then
      return hit_one(key + 1, limit, cost, now)
    end
  end
  judge = judge or make_judge()
  return judge(what % FIRST, arg, at, many, now, what >= FIRST)
end
