-- Windows in Redis: a hash for each key that is counted, a field for each rule and window. A call reads each at most
-- once, works on the copy, and writes what has changed at its end. A stored value is the bytes of core.

local PERIOD_BYTES = 33 -- no ring is as long

-- The limits of a call, each unpacked once, and found again by its bytes: the field, the amount, three numbers, the
-- resolution and the modes.
local LIMIT_BYTES = 39
local COUNT_DENIED, QUOTA, PERMITS = 1, 2, 4 -- modes; the first two may be added up
local limits = {}

local function limit_at(arg, at)
  local text = sub(arg, at, at + LIMIT_BYTES - 1)
  local limit = limits[text]
  if not limit then
    limit = { field = sub(text, 1, 8) }
    local first, second, third, modes
    limit.amount, first, second, third, limit.resolution, modes = unpack_from("<I4i8i8i8HB", text, 9)
    limit.count_denied = modes % QUOTA == COUNT_DENIED
    if modes >= PERMITS then
      limit.worker, limit.lease, limit.kind = sub(text, 13, 20), second, permits()
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
local reset -- when all windows were reset last: nothing that was spent up to then is handed back

local function row_at(place)
  local row = rows[place]
  if not row then
    row = {}
    rows[place] = row
  end
  return row
end

local function unpack_window(value)
  return #value == PERIOD_BYTES and periods_of_quotas().unpack(value) or ring.unpack(value)
end

-- The window of a key as it was when it was last asked; false where there is none.
local function read(place, limit, now)
  local row = row_at(place)
  local w = row[limit.field]
  if w == nil then
    if limit.worker then
      w = permits().read(KEYS[place], now)
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

local function new_window(limit, now)
  local w = limit.kind.new()
  w.floor = (w.dated or now < reset + limit.span) and reset or -1
  return w
end

-- The window of a key at a moment, new if there is none.
local function window(place, limit, now)
  local w = read(place, limit, now) or new_window(limit, now)
  limit.kind.settle(w, limit, now)
  w.limit = limit
  rows[place][limit.field] = w
  return w
end

-- Forget what a key has spent in its windows; return whether that was anything.
local function forget(place, now, latest)
  local row, fields, found = row_at(place), redis.call("HGETALL", KEYS[place]), false
  for at = 1, #fields, 2 do
    if row[fields[at]] == nil and fields[at] ~= BAN then
      row[fields[at]] = unpack_window(fields[at + 1])
    end
  end
  for _, w in pairs(row) do
    if w and not w.permits then
      found = found or w.spent > 0
      local kind = w.dated and periods_of_quotas() or ring
      kind.reset(w, now, latest)
    end
  end
  return found
end

-- Call a command of a key with many arguments: some at a time, because Lua hands on no more than 8,000.
local MOST_ARGUMENTS = 1000

local function call_with(command, key, arguments)
  for first = 1, #arguments, MOST_ARGUMENTS do
    redis.call(command, key, unpack(arguments, first, min(first + MOST_ARGUMENTS - 1, #arguments)))
  end
end

-- Write the rows that have changed. If Redis takes no writes, this raises its error.
local function save(now, slack_ms)
  for place, row in pairs(rows) do
    local set, gone, ends = {}, {}, 0
    for field, w in pairs(row) do
      if w and w.dirty then
        w.dirty = false
        local kind, expires = w.dated and periods_of_quotas() or ring, 1 -- what is only forgotten keeps its TTL
        if w.limit and not w.permits then
          expires = kind.expires(w, w.limit)
          ends = max(ends, expires)
        end
        if w.permits then
          permits().save(w, now, slack_ms)
        elseif expires > 0 then
          set[#set + 1] = field
          set[#set + 1] = kind.pack(w)
        else
          gone[#gone + 1] = field
        end
      end
    end
    call_with("HDEL", KEYS[place], gone)
    if #set > 0 then
      call_with("HSET", KEYS[place], set)
      local left_ms = math.ceil((ends - now) / 1000)
      if ends > 0 and redis.call("PTTL", KEYS[place]) < left_ms then
        redis.call("PEXPIRE", KEYS[place], left_ms + slack_ms)
      end
    end
  end
end

-- The operations on all windows of a question at once, as core/decide.py: all of them are charged or none.

local OK, LIMITED, TOO_LARGE, NOTHING, CHANGED, UNSETTLED = 0, 1, 2, 3, 4, 6
local HIT, PEEK, CHARGE, REFUND, RESET, LOOK, GLANCE, INSPECT = 1, 2, 3, 4, 5, 6, 7, 8

local function reading(w, limit, wait)
  local spent, leaves, newest = limit.kind.state(w, limit)
  return pack("<I8i8i8i8", spent, leaves, newest, wait)
end

-- An ask: window `w`, `limit`, `cost`, `ahead` (units that the question asks of the same window before), and `wait`, how
-- long the window holds the question up.
--
-- Find these waits, and charge nothing; return the status of the answer. A refusal for want of a permit is UNSETTLED: it
-- may end at any moment, so no worker may give it from memory.
local function look(asks, now)
  local status = OK
  for _, ask in ipairs(asks) do
    local wait = ask.limit.kind.wait(ask.w, ask.limit, now, ask.cost, ask.ahead)
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

local function hit(asks, now)
  local status, denied = look(asks, now), false
  if status == OK then
    local told = pack("<B", OK)
    for _, ask in ipairs(asks) do
      ask.limit.kind.add(ask.w, ask.limit, now, ask.cost)
      told = told .. reading(ask.w, ask.limit, 0)
    end
    return told
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

-- What most calls do not need.
local function make_others()
  local others = {}

  -- The readings, then how much of each cost was counted.
  function others.charge(asks, now)
    local told, counted = pack("<B", OK), ""
    for _, ask in ipairs(asks) do
      counted = counted .. pack("<I4", ask.limit.kind.charge(ask.w, ask.limit, now, ask.cost))
      told = told .. reading(ask.w, ask.limit, 0)
    end
    return told .. counted
  end

  function others.refund(arg, at, many, now)
    local changed = false
    for _ = 1, many do
      local key, mark, spent_at, units, rest = unpack_from("<Hi8i8I4", arg, at)
      local limit = limit_at(arg, rest)
      at = rest + LIMIT_BYTES
      if limit.worker then
        changed = permits().let_go(read(key + 1, limit, now), limit.worker .. pack("<I4", mark), now) or changed
      elseif read(key + 1, limit, now) then
        local dirty = rows[key + 1][limit.field].dirty
        local w = window(key + 1, limit, now)
        if spent_at > reset and limit.kind.remove(w, now, spent_at, mark, units) then
          changed = true
        else
          w.dirty = dirty -- a refund that finds nothing writes nothing
        end
      end
    end
    return pack("<B", changed and CHANGED or NOTHING)
  end

  -- The windows in the bytes of core, each behind its length; permits as how many are taken.
  function others.inspect(asks)
    local parts = { pack("<B", OK) }
    for place, ask in ipairs(asks) do
      local row = ask.w.permits and pack("<I4", ask.w.spent) or ask.limit.kind.pack(ask.w)
      parts[place + 1] = pack("<I4", #row) .. row
    end
    return table.concat(parts)
  end

  -- A copy of a window for a look, the same one each time it is asked for.
  function others.imagine(place, limit, now, copies)
    local name = place .. limit.field
    local w = copies[name]
    if not w then
      local known = read(place, limit, now)
      if limit.worker then
        w = permits().copy(known)
      else
        w = new_window(limit, now)
        for number, value in pairs(known or {}) do
          w[number] = value
        end
      end
      copies[name] = w
    end
    limit.kind.settle(w, limit, now)
    return w
  end

  return others
end

local made_others

local function others()
  made_others = made_others or make_others()
  return made_others
end

local function asks_of(arg, at, many, now, copies)
  local asks = {}
  for place = 1, many do
    local key, cost, rest = unpack_from("<HI4", arg, at)
    local limit = limit_at(arg, rest)
    at = rest + LIMIT_BYTES
    local w = copies and others().imagine(key + 1, limit, now, copies) or window(key + 1, limit, now)
    local ahead = 0
    for _, other in ipairs(asks) do
      ahead = other.w == w and ahead + other.cost or ahead
    end
    asks[place] = { w = w, limit = limit, cost = cost, ahead = ahead, wait = 0 }
  end
  return asks
end

local function judge(what, arg, at, many, now)
  if what == REFUND then
    return others().refund(arg, at, many, now)
  elseif what == RESET then
    return pack("<B", forget(many + 1, now, unpack_from("<i8", arg, at)) and CHANGED or NOTHING)
  end
  local imagined = what == PEEK or what == GLANCE or what == INSPECT
  local asks = asks_of(arg, at, many, now, imagined and {})
  if what == INSPECT then
    return others().inspect(asks)
  elseif what == CHARGE then
    return others().charge(asks, now)
  elseif what == LOOK or what == GLANCE then
    return answer(look(asks, now), asks) -- of a part of a question whose other keys lie elsewhere
  end
  return hit(asks, now)
end

local ASK_BYTES, NOTE_BYTES, TIME_BYTES = 6, 22, 8

-- How many bytes a request takes behind its head.
local function bytes_of(what, many)
  if what == RESET then
    return TIME_BYTES
  end
  return many * ((what == REFUND and NOTE_BYTES or ASK_BYTES) + LIMIT_BYTES)
end

-- One call: ARGV[1] is the head, and ARGV[2] the requests; they are decided in order. Each begins with its operation, how
-- many asks it has, and in which of KEYS bans that refuse it would stand. The answer is {time, how many bans there are and the
-- version of those of networks, the life of the data, answers ...}.

local FAILED, BANNED = 255, 5
local STATE_PARTS = 3
local now, slack_ms, with_meta
now, serials, slack_ms, with_meta, reset = unpack_from("<i8I4I4Bi8", ARGV[1])
now = time_of(now)
local replies = { pack("<i8", now), pack("<I4", 0), "" }
if with_meta == 1 then
  local stored = try("HMGET", KEYS[1], "life", "reset", "networks") or {}
  reset = tonumber(stored[2]) or -1
  replies[2] = pack("<I4", count_bans(KEYS[2], now)) .. (stored[3] or "")
  replies[3] = stored[1] or ""
end

local requests = ARGV[2]
local banned = {} -- by place in KEYS

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

local next_at, place = 1, STATE_PARTS
while next_at <= #requests do
  local what, many, bans, at = unpack_from("<BHB", requests, next_at)
  next_at, place = at + 2 * bans + bytes_of(what, many), place + 1
  local fine, reply = pcall(answer_to, what, many, bans, at)
  if not fine then
    reply = pack("<B", FAILED) .. (type(reply) == "table" and reply.err or tostring(reply))
  end
  replies[place] = reply
end
local saved, why = pcall(save, now, slack_ms)
if not saved then
  for place = STATE_PARTS + 1, #replies do
    local status = unpack_from("<B", replies[place])
    local refused = status == LIMITED or status == UNSETTLED or status == TOO_LARGE or status == BANNED
    if not refused and status ~= NOTHING then
      replies[place] = pack("<B", FAILED) .. (type(why) == "table" and why.err or tostring(why))
    end
  end
end
return replies
