-- The rules of core/bans/rules.py, and the commands of users. Changes are reported in `events`.

-- A policy as the caller packs it.
local function policy_at(arg)
  local p = { ladder = {} }
  local shadow, steps, at
  p.amount, p.window, p.grain, p.forgive, shadow, steps, p.name, at = unpack_from("<I4i8i8i8BHHc0", arg)
  p.shadow = shadow == 1
  for place = 1, steps do
    p.ladder[place], at = unpack_from("<i8", arg, at)
  end
  return p
end

-- Whether one more automatic ban can be recorded.
local function has_room(key, max_bans)
  remove_ban(key) -- the ban that it has is over, and the new one takes its place
  while count_bans() >= max_bans do
    if let_go(64) == 0 then
      tell(FULL, key)
      return false
    end
  end
  return true
end

local function strike(policy, key, weight, reason, max_bans)
  local ban = ban_of(key)
  if ban and not is_over(ban, now) then
    return nil
  end
  local found = records_of(key)
  if not found[policy.name] then
    if make_room(max_bans) then
      tell(DROPPED, key)
    end
    found = records_of(key) -- another one of this key may have made room
  end
  local s = found[policy.name] or { level = 0, last = 0, until_at = 0, over = 0, strikes = {} }
  found[policy.name] = s
  local made
  if count_strike(s, policy, weight) and (policy.shadow or has_room(key, max_bans)) then
    made = make_ban(s, policy, key, reason)
  end
  keep_records(key, found)
  if made and policy.shadow then
    tell(SHADOW, key, made)
    return nil
  elseif made then
    record(made)
    change(BANNED, made)
  end
  return made
end

local commands = {}

-- policy, key, weight, reason, max_bans, how long to know of it. Answers with the ban that was made, and how many strikes
-- are missing for the next. What comes again is counted once
function commands.strike()
  let_go(2)
  local policy, key, made = policy_at(ARGV[3]), ARGV[4], nil
  if redis.call("SET", KEYS[6], "", "NX", "PX", ARGV[8]) then
    made = strike(policy, key, tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]))
  end
  local s, missing = records_of(key)[policy.name], policy.amount
  for _, counted in ipairs(s and s.strikes or {}) do
    missing = missing - counted.weight
  end
  return { made and pack_ban(made) or "", missing }
end

-- key, length or -1, reason, by, how many networks may be banned. Answers with the ban; "" for one network too many
function commands.ban()
  let_go(2)
  local length = tonumber(ARGV[4])
  local ban = { key = ARGV[3], reason = ARGV[5], by = ARGV[6], level = 0, made = now, wall = wall }
  ban.ends = length < 0 and -1 or now + length
  local before, kind = ban_of(ban.key), kind_of(ban)
  local is_known = before and kind_of(before) == kind
  if kind ~= NO_NETWORK and not is_known and count_networks() >= tonumber(ARGV[7]) then
    return ""
  end
  record(ban)
  change(BANNED, ban)
  return pack_ban(ban)
end

-- key
function commands.unban()
  local key = ARGV[3]
  local ban, forgotten = ban_of(key), false
  for name, s in pairs(records_of(key)) do
    forgotten = forgotten or s.over > now
    redis.call("ZREM", KEYS[OVER], member_of(key, name))
  end
  redis.call("HDEL", KEYS[RECORDS], key)
  if ban then
    remove_ban(key)
    if ban.ends < 0 and all_end() then
      redis.call("PEXPIRE", KEYS[LIST], LONGEST_MS)
    end
    if not is_over(ban, now) then
      change(UNBANNED, ban)
      return 1
    end
  end
  return forgotten and 1 or 0
end

-- how many bans, then key and row of each, then key and row of each strike record
function commands.load()
  local records_from = 4 + 2 * tonumber(ARGV[3])
  for place = 4, records_from - 1, 2 do
    local ban, other = unpack_ban(ARGV[place], ARGV[place + 1]), ban_of(ARGV[place])
    if not other or other.ends >= 0 and (ban.ends < 0 or ban.ends > other.ends) then
      record(ban)
    end
  end
  renumber()
  for place = records_from, #ARGV, 2 do
    local key = ARGV[place]
    local found = records_of(key)
    for name, loaded in pairs(unpack_records(ARGV[place + 1])) do
      if not found[name] or found[name].last <= loaded.last then
        found[name] = loaded
      end
    end
    keep_records(key, found)
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
    told[#told + 1], _, at = find_bans(KEYS[LIST], ARGV[3], at, now)
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
