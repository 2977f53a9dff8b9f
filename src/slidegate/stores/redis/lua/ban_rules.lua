-- The rules of core/bans/rules.py, and the commands of users. Changes are reported in `events`.

-- A policy as the caller packs it, and the place in KEYS of the window of bans that it made.
local function policy_at(arg, made_key)
  local p, rate = { made_key = made_key, ladder = {} }, {}
  local steps, at
  p.amount, p.window, p.grain, p.forgive, p.jitter, p.longest, p.prolongs, p.shadow, rate.amount, rate.resolution,
    rate.step, rate.span, steps, p.name, at = unpack_from("<I4i8i8i8di8BBI4Hi8i8HHc0", arg)
  for place = 1, steps do
    p.ladder[place], at = unpack_from("<i8", arg, at)
  end
  p.max_rate = rate
  return p
end

-- Whether one more automatic ban can be recorded.
local function has_room(key, is_prefix, max_bans)
  if ban_of(key) then -- it is over, and what is recorded takes its place
    remove_ban(key)
  end
  while let_go(64) > 0 and count_bans() >= max_bans do
  end
  local share = floor(max_bans / 10)
  local full_of_prefixes = false
  if is_prefix then
    if redis.call("SCARD", KEYS[PREFIXES]) >= share then
      for _, prefix in ipairs(redis.call("SMEMBERS", KEYS[PREFIXES])) do
        local ban = ban_of(prefix)
        if not ban or ban.level == 0 or is_over(ban) then
          redis.call("SREM", KEYS[PREFIXES], prefix)
        end
      end
    end
    full_of_prefixes = redis.call("SCARD", KEYS[PREFIXES]) >= share
  end
  local room = count_bans() < max_bans
  if room and not full_of_prefixes then
    return true
  end
  tell(room and FULL_OF_PREFIXES or FULL, nil, key)
  return false
end

-- Count one more ban that a policy makes; false if it has made as many as it may.
local function may_make(policy)
  local limit, value = policy.max_rate, redis.call("GET", KEYS[policy.made_key])
  local made = value and ring.unpack(value) or ring.new()
  ring.settle(made, limit, now)
  if ring.wait(made, limit, now, 1, 0) ~= 0 then
    return false
  end
  ring.add(made, limit, now, 1)
  local left_ms = math.ceil((ring.expires(made, limit) - now) / 1000) + slack_ms
  redis.call("SET", KEYS[policy.made_key], ring.pack(made), "PX", left_ms)
  return true
end

local function strike(policy, key, weight, reason, source, max_bans)
  local ban = ban_of(key)
  if ban and not is_over(ban) then
    return nil
  end
  local found = records_of(key)
  if not found[policy.name] then
    if make_room(max_bans) then
      tell(DROPPED, nil, key)
    end
    found = records_of(key) -- another one of this key may have made room
  end
  local s = found[policy.name] or { level = 0, last = 0, until_at = 0, strikes = {} }
  found[policy.name] = s
  if policy.shadow == 0 then
    s.until_at = min(s.until_at, now) -- none is in force: the last one ended by the wall clock
  end
  local due = count_strike(s, policy, weight, source)
  if due and policy.shadow == 0 and not has_room(key, source ~= "", max_bans) then
    due = false
  end
  if due and not may_make(policy) then
    tell(CAPPED, nil, key)
    due = false
  end
  local made
  if due then
    local length = next_length(s, policy, key)
    made = { key = key, made = now, ends = now + length, wall = wall, level = s.level, by = policy.name, reason = reason }
    made.prolong = policy.prolongs == 1 and length or 0
    if policy.shadow == 0 then
      record(made)
      change(BANNED, made, made.by)
    else
      tell(SHADOW, made, key)
    end
  end
  keep_records(key, found)
  return made
end

local commands = {}

-- policy, key, weight, reason, max_bans, how long to know of it; and prefix, its policy, its reason, where there is one.
-- Answers with the ban that was made, and how many strikes are missing for the next. What comes again is counted once
function commands.strike()
  let_go(2)
  local policy, key, max_bans = policy_at(ARGV[3], 9), ARGV[4], tonumber(ARGV[7])
  local made
  if redis.call("SET", KEYS[8], "", "NX", "PX", ARGV[8]) then
    made = strike(policy, key, tonumber(ARGV[5]), ARGV[6], "", max_bans)
  end
  if made and ARGV[9] then
    strike(policy_at(ARGV[10], 10), ARGV[9], 1, ARGV[11], key, max_bans)
  end
  local s, missing = records_of(key)[policy.name], policy.amount
  for _, counted in ipairs(s and s.strikes or {}) do
    missing = missing - counted.weight
  end
  return { made and policy.shadow == 0 and pack_ban(made) or "", missing }
end

-- key, length or -1, reason, by
function commands.ban()
  let_go(2)
  local length = tonumber(ARGV[4])
  local ban = { key = ARGV[3], reason = ARGV[5], by = ARGV[6], level = 0, made = now, wall = wall, prolong = 0 }
  ban.ends = length < 0 and -1 or now + length
  record(ban)
  change(BANNED, ban, ban.by)
  return pack_ban(ban)
end

-- key, by
function commands.unban()
  local key, by = ARGV[3], ARGV[4]
  local ban, forgotten = ban_of(key), false
  for name, s in pairs(records_of(key)) do
    forgotten = forgotten or over_at(s) > now
    redis.call("ZREM", KEYS[OVER], member_of(key, name))
  end
  redis.call("HDEL", KEYS[RECORDS], key)
  if ban then
    remove_ban(key)
    if ban.ends < 0 and all_end() then
      redis.call("PEXPIRE", KEYS[LIST], LONGEST_MS)
    end
    if not is_over(ban) then
      change(UNBANNED, ban, by)
      return 1
    end
  end
  return forgotten and 1 or 0
end

-- keys: let their bans go on that requests prolong
function commands.prolong()
  for place = 3, #ARGV do
    local ban = ban_of(ARGV[place])
    if ban and ban.prolong > 0 and not is_over(ban) and now + ban.prolong > ban.ends then
      ban.ends = now + ban.prolong
      record(ban)
      local found = records_of(ban.key)
      if found[ban.by] then
        found[ban.by].until_at = ban.ends
        keep_records(ban.key, found)
      end
    end
  end
  return ""
end

-- how many bans, then key and row of each, then key, name and row of each strike record
function commands.load()
  local place = 4
  for _ = 1, tonumber(ARGV[3]) do
    local ban, other = unpack_ban(ARGV[place], ARGV[place + 1]), ban_of(ARGV[place])
    local longer = other and other.ends >= 0 and (ban.ends < 0 or ban.ends > other.ends)
    if not other or is_over(other) or longer then
      record(ban)
    end
    place = place + 2
  end
  renumber()
  while place < #ARGV do
    local key, name = ARGV[place], ARGV[place + 1]
    local found, loaded = records_of(key), unpack_records(ARGV[place + 2])[name]
    if not found[name] or found[name].last <= loaded.last then
      found[name] = loaded
      keep_records(key, found)
    end
    place = place + 3
  end
  return ""
end

-- the keys under which bans of some requests would stand. Answers with the bans in force for each, and forgets some that
-- are over, where Redis takes writes: the kinds say how many bans there are
function commands.find()
  local told, at, _ = {}, 1, nil
  pcall(function()
    if let_go(64) > 0 then
      note_meta()
    end
  end)
  while at <= #ARGV[3] do
    told[#told + 1], _, at = find_bans(KEYS[LIST], ARGV[3], at, now, wall)
  end
  return told
end

-- From now on nothing is handed back that was spent in any window before, by a clock that has been as late as ARGV[3].
function commands.reset_all()
  reset = max(reset, wall, tonumber(ARGV[3]))
  redis.call("HSET", KEYS[META], "reset", text_of(reset))
  renumber()
  return ""
end

local answer = commands[ARGV[2]]()
if ARGV[2] ~= "find" then
  note_meta()
end
return { pack("<i8i8i8", now, wall, reset), kinds_of(KEYS[LIST]), state_of(life, number), answer, events }
