-- Windows and permits in Redis: a hash for each counted key, with a field for each rule and window, and for the permits of
-- each rule. Values have the format of core; that of a window has its end before it.
--
-- One call: ARGV[2] are the requests, which are decided in order; each reads what it needs, and writes
-- what it has changed. A request starts with its operation, the numbers of its keys, asks, bans and arguments, and the
-- indexes of the keys whose bans refuse it; an ask has the index of its key, a mark, units, and the limit. Indexes count
-- from the first key of the request; KEYS has those of all requests, and ARGV the arguments of all commands, see
-- ``bans.lua``. The answer is {time, answers ...}.

local ASK = "<Hi8I4"
local ASK_BYTES = 53 -- 14, and those of the limit

local requests = ARGV[2]
local limits = {} -- by their bytes

-- Return an ask: the name of the hash, the limit, the mark, the units, the settled window, and how long the question has
-- to wait for it. No question contains a window twice.
local function ask_at(at)
  local key, mark, units, rest = unpack_from(ASK, requests, at)
  local text = sub(requests, rest, rest + LIMIT_BYTES - 1)
  limits[text] = limits[text] or limit_of(text)
  local name, limit = key_at(1 + key), limits[text]
  local value = redis.call("HGET", name, limit.field) or ""
  local w = limit.counter.read(#value < limit.starts and value or sub(value, limit.starts), limit, name)
  return { name = name, limit = limit, mark = mark, units = units, w = w, wait = 0 }
end

local PICKED = 8 -- of the fields of a hash

-- Delete what has ended among some fields of a hash, which Redis picks. This happens when a hash gets another field, and when
-- it is to live longer, which is once a second: so the fields of a key that is in use for ever leave after their windows.
local function drop_ended(name)
  local picked = redis.call("HRANDFIELD", name, PICKED, "WITHVALUES")
  for at = 1, #picked, 2 do
    local ends = end_of_value(picked[at], picked[at + 1])
    if ends > 0 and ends + kept_after_end(picked[at]) <= now then
      redis.call("HDEL", name, picked[at])
    end
  end
end

local created = {} -- the hashes that this call has created

-- Store a value, and let its hash live as long.
local function save_value(name, field, value, ends)
  local is_new, left_ms = store(name, field, value) == 1, (ends - now) / 1000
  local lives_ms = live_for(name, left_ms)
  if lives_ms < 0 then
    created[name] = true
  elseif (is_new or lives_ms < left_ms) and not created[name] then
    drop_ended(name)
  end
end

-- Write windows. If Redis accepts no writes, the first one raises its error.
local function save(asks)
  for _, ask in ipairs(asks) do
    local name, limit, counter = ask.name, ask.limit, ask.limit.counter
    local value = counter.pack(ask.w, limit)
    if value == "" then
      redis.call("HDEL", name, limit.field)
    else
      local ends = counter.expires(ask.w, limit)
      save_value(name, limit.field, limit.starts > 1 and pack("<i8", ends) .. value or value, ends)
    end
    if counter == permits then
      permits.written[name .. limit.field] = true
    end
  end
end

-- In order of gravity: of several asks, the greatest decides.
local OK = 0
local LIMITED = 1
local UNSETTLED = 2
local TOO_LARGE = 3
local NOTHING = 4
local CHANGED = 5
local BANNED = 6
local FAILED = 255
-- A refusal for lack of a permit is UNSETTLED: a permit may be released at any moment, so workers must not cache it.
local function status_of(wait_us)
  if wait_us == 0 then
    return OK
  elseif wait_us == OPEN then
    return UNSETTLED
  elseif wait_us == NEVER then
    return TOO_LARGE
  end
  return LIMITED
end

-- Compute how long each ask has to wait; return the status of the answer.
local function wait(asks)
  local status = OK
  for _, ask in ipairs(asks) do
    ask.wait = ask.limit.counter.wait(ask.w, ask.limit, ask.units)
    status = max(status, status_of(ask.wait))
  end
  return status
end

local function charge(ask)
  return ask.limit.counter.charge(ask.w, ask.limit, ask.units)
end

local function answer(status, asks)
  local reply = pack("<B", status)
  for _, ask in ipairs(asks) do
    local spent, leaves, newest = ask.limit.counter.state(ask.w, ask.limit)
    reply = reply .. pack("<I8i8i8i8", spent, leaves, newest, ask.wait)
  end
  return reply
end

-- Charge asks here, but write nothing: return the answer to a hit, and the asks that it writes, which are those that it
-- charges, all or those that count refusals, and those that differ from what is stored.
local function decide(asks)
  local status, changed = wait(asks), {}
  for _, ask in ipairs(asks) do
    local counts = status == OK or status ~= TOO_LARGE and ask.limit.count_denied
    if counts then
      charge(ask)
    end
    if counts or ask.w.differs then
      changed[#changed + 1] = ask
    end
  end
  if status ~= OK and changed[1] then
    wait(asks)
  end
  return answer(status, asks), changed
end

local function hit(asks)
  local reply, changed = decide(asks)
  save(changed)
  return reply
end

local SHARE = 16 -- of the room, which may be charged ahead
local first_argument = 3

-- Decide a hit, and charge with it equal ones that are still to come, as many as its argument says: a worker spends these
-- until the first slice ends. The answer has the states after that, and ends with how many hits were charged, and how long
-- until that end. If there is room for none, it is that to a hit.
local function lease(asks)
  local room, ends = math.huge, math.huge
  for _, ask in ipairs(asks) do
    room = min(room, math.floor((ask.limit.amount - ask.w.spent) / ask.units))
    ends = min(ends, moment_of(ask.limit))
  end
  if room < 1 then
    return hit(asks)
  end
  local times = 1
  if ends > now then
    times = max(1, min(1 + ARGV[first_argument], math.floor(room / SHARE)))
  end
  for _, ask in ipairs(asks) do
    ask.limit.counter.charge(ask.w, ask.limit, ask.units * times)
  end
  save(asks)
  return answer(OK, asks) .. pack("<I4i8", times, ends - now)
end

-- Charge, whatever the limits; the answer ends with the units counted.
local function charge_all(asks)
  local counted = ""
  for _, ask in ipairs(asks) do
    counted = counted .. pack("<I4", charge(ask))
  end
  save(asks)
  return answer(OK, asks) .. counted
end

-- Refund, or renew permits.
local function refund(asks)
  local changed = {}
  for _, ask in ipairs(asks) do
    if ask.limit.counter.remove(ask.w, ask.mark, ask.units) then
      changed[#changed + 1] = ask
    end
  end
  save(changed)
  return pack("<B", changed[1] and CHANGED or NOTHING)
end

-- Return the windows in the format of core.
local function inspect(asks)
  local windows = { OK }
  for _, ask in ipairs(asks) do
    windows[#windows + 1] = ask.limit.counter.pack(ask.w, ask.limit)
  end
  return windows
end

-- Return the answer to a hit, which is not made.
local function peek(asks)
  return (decide(asks))
end

local COMMAND = 6
local commands -- defined by the first command of a call
local operations = { hit, peek, charge_all, refund, inspect, [7] = lease }

-- Return the answer to a banned request: BANNED, and the bans in force among those at `at`, of which there may be none.
local function bans_of(count, at)
  local reply = { BANNED }
  for place = 0, count - 1 do
    local row = ban_in_force(key_at(1 + unpack_from("<H", requests, at + 2 * place)))
    if row ~= "" then
      reply[#reply + 1] = row
    end
  end
  return reply
end

local function answer_to(what, many, bans, arguments, at)
  local refusal = bans_of(bans, at)
  if refusal[2] then
    return refusal
  elseif what == COMMAND then -- the first argument is its name
    commands = commands or define_commands()
    local reply = commands[ARGV[first_argument]](unpack(ARGV, first_argument + 1, first_argument + arguments - 1))
    return reply or OK -- without one, the answers behind it would move up
  end
  local asks = {}
  for place = 1, many do
    asks[place] = ask_at(at + 2 * bans + (place - 1) * ASK_BYTES)
  end
  return operations[what](asks)
end

local replies, next_at = { "" }, 1
while next_at <= #requests do
  local what, many, bans, arguments, at
  what, keys_here, many, bans, arguments, at = unpack_from("<BHHHH", requests, next_at)
  local is_answered, reply = pcall(answer_to, what, many, bans, arguments, at)
  if not is_answered then
    reply = pack("<B", FAILED) .. (type(reply) == "table" and reply.err or tostring(reply))
  end
  replies[#replies + 1] = reply
  keys_before, first_argument = keys_before + keys_here, first_argument + arguments
  next_at = at + 2 * bans + many * ASK_BYTES
end
replies[1] = pack("<i8", now)
return replies
