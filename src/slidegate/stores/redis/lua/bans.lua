-- The keys of Redis that hold bans. All of them lie in one slot of a cluster:
--
--   meta        numbers: `bans` (of the last change), `floor` (below it changes are not known any more), `ahead` and
--               `latest` of the bans' time; `parts`, until when each of the others lives; `life`, which is another one
--               after a loss of data; `hands`, of the last hand-back; and `reset`, when all windows were reset
--   list        a ban for each key, see banned.lua     ends       keys by the end of their ban
--   changes     keys by the number of their last change, the latest `MOST_CHANGES`
--   history     the latest `MOST_HISTORY` changes, newest first
--   standings   for each key, how it stands under each policy     over       these strike records by when they are forgotten
--   prefixes    keys that may be prefixes banned by a policy

local MOST_CHANGES, MOST_HISTORY = 4096, 10000
local LONGEST_MS = 400 * 86400000
local SURE_US = 1000000 -- how long before its end a key of Redis has not expired for certain
local META, LIST, ENDS, CHANGES, HISTORY, STANDINGS, OVER, PREFIXES = 1, 2, 3, 4, 5, 6, 7, 8

local wall, slack_ms = tonumber(ARGV[1]), 86400000
if wall < 0 then
  local clock = redis.call("TIME")
  wall, slack_ms = clock[1] * 1000000 + clock[2], 1000
end

local function text_of(number)
  return string.format("%.0f", number)
end

local numbers = redis.call("HMGET", KEYS[META], "bans", "ahead", "latest", "hands", "life", "parts", "reset")
local last, ahead, latest = tonumber(numbers[1]) or 0, tonumber(numbers[2]) or 0, tonumber(numbers[3]) or 0
local life, hands, parts, reset = numbers[5] or "", numbers[4] or 0, numbers[6], tonumber(numbers[7]) or -1
local banned = make_banned(KEYS[LIST])
local now
now, ahead = banned.time(KEYS[META], wall, ahead, latest)

local function keep_time()
  redis.call("HSET", KEYS[META], "ahead", text_of(ahead), "latest", text_of(now))
end

-- Let a key live until a moment, if it does not live longer already, or for ever.
local function keep(name, until_at, for_ever)
  local needed_ms = math.ceil((until_at - now) / 1000) + slack_ms
  local left_ms = redis.call("PTTL", KEYS[name])
  if left_ms < needed_ms and not (for_ever and left_ms == -1) then
    redis.call("PEXPIRE", KEYS[name], needed_ms)
  end
end

local unpack_ban, pack_ban = banned.unpack, banned.pack

local function is_over(ban)
  return banned.is_over(ban, now, wall)
end

local function ban_of(key)
  local row = redis.call("HGET", KEYS[LIST], key)
  return row and unpack_ban(key, row)
end

local function note_change(key)
  if redis.call("EXISTS", KEYS[CHANGES]) == 0 then
    redis.call("HSET", KEYS[META], "floor", text_of(last))
  end
  last = max(last + 1, now)
  redis.call("HSET", KEYS[META], "bans", text_of(last))
  keep_time()
  redis.call("ZADD", KEYS[CHANGES], text_of(last), key)
  local oldest = redis.call("ZRANGE", KEYS[CHANGES], 0, -MOST_CHANGES - 1, "WITHSCORES")
  if #oldest > 0 then
    redis.call("HSET", KEYS[META], "floor", oldest[#oldest])
    redis.call("ZREMRANGEBYRANK", KEYS[CHANGES], 0, -MOST_CHANGES - 1)
  end
  redis.call("PEXPIRE", KEYS[CHANGES], LONGEST_MS)
end

local function remove_ban(key)
  if redis.call("HDEL", KEYS[LIST], key) > 0 then
    banned.count_length(key, -1)
  end
  redis.call("ZREM", KEYS[ENDS], key)
end

local function all_end()
  return banned.many() == redis.call("ZCARD", KEYS[ENDS])
end

-- A prefix that a policy has banned.
local function note_prefix(ban)
  if ban.level > 0 and sub(ban.by, -7) == "/prefix" then
    redis.call("SADD", KEYS[PREFIXES], ban.key)
    redis.call("PEXPIRE", KEYS[PREFIXES], LONGEST_MS)
  end
end

-- Put a ban in force, in the place of one of the same key.
local function record(ban)
  if redis.call("HSET", KEYS[LIST], ban.key, pack_ban(ban)) > 0 then
    banned.count_length(ban.key, 1)
  end
  if ban.ends >= 0 then
    redis.call("ZADD", KEYS[ENDS], text_of(ban.ends), ban.key)
    keep(ENDS, ban.ends)
    keep(LIST, ban.ends, not all_end())
  else
    redis.call("ZREM", KEYS[ENDS], ban.key)
    redis.call("PERSIST", KEYS[LIST])
  end
  note_prefix(ban)
  note_change(ban.key)
end

local function remember(kind, ban, by)
  local entry = pack("<Bi8HH", kind, wall, #by, #ban.key) .. by .. ban.key .. pack_ban(ban)
  redis.call("LPUSH", KEYS[HISTORY], entry)
  redis.call("LTRIM", KEYS[HISTORY], 0, MOST_HISTORY - 1)
  redis.call("PEXPIRE", KEYS[HISTORY], LONGEST_MS)
end

-- Forget bans that are over, at most so many; return how many there were.
local function let_go(most)
  local over = redis.call("ZRANGEBYSCORE", KEYS[ENDS], "-inf", text_of(now), "LIMIT", 0, most)
  for _, key in ipairs(over) do
    remove_ban(key)
  end
  return #over
end

-- Note until when each part lives: 0 where there is none, -1 for ever.
local function note_parts()
  local ends = {}
  for place = LIST, PREFIXES do
    local left_ms = redis.call("PTTL", KEYS[place])
    ends[place - 1] = pack("<i8", left_ms == -2 and 0 or left_ms == -1 and -1 or now + left_ms * 1000)
  end
  redis.call("HSET", KEYS[META], "parts", table.concat(ends))
end

local function is_lost(place)
  local ends = unpack_from("<i8", parts, 8 * (place - LIST) + 1)
  return (ends == -1 or ends > now + SURE_US) and redis.call("EXISTS", KEYS[place]) == 0
end

-- Redis may evict any key, and a list of bans without their ends, or strike records without theirs, would never be forgotten:
-- so they go together. Where bans are lost the data has another life from now on, so that all workers learn of it.
local function notice_loss()
  if is_lost(STANDINGS) or is_lost(OVER) then
    redis.call("UNLINK", KEYS[STANDINGS], KEYS[OVER])
    note_parts()
  end
  if is_lost(LIST) or is_lost(ENDS) then
    redis.call("UNLINK", KEYS[LIST], KEYS[ENDS], KEYS[CHANGES])
    life, last = sub(redis.sha1hex(life .. text_of(now)), 1, LIFE_BYTES), max(last + 1, now)
    redis.call("HSET", KEYS[META], "life", life, "bans", text_of(last), "floor", text_of(last))
    note_parts()
  end
end

if parts then
  notice_loss()
end

-- How keys stand under policies, as core/bans/strikes.py. A record is a table like `StrikeRecord`, with the `window` and
-- the `forgive` of its policy, so that it is known when there is nothing left to remember; both are 0 where it was
-- loaded and its policy has not struck since.

local function records_of(key)
  local row = redis.call("HGET", KEYS[STANDINGS], key)
  local found, at = {}, 1
  while row and at <= #row do
    local s, name, many = { strikes = {} }, nil, nil
    s.level, s.last, s.until_at, s.window, s.forgive, many, name, at = unpack_from("<I4i8i8i8i8HH", row, at)
    found[sub(row, at, at + name - 1)] = s
    at = at + name
    for place = 1, many do
      local strike, source = {}, nil
      strike.at, strike.weight, source, at = unpack_from("<i8I8H", row, at)
      strike.source = sub(row, at, at + source - 1)
      at = at + source
      s.strikes[place] = strike
    end
  end
  return found
end

local function level_at(s)
  local clean = max(now - max(s.last, s.until_at), 0)
  return max(s.level - floor(clean / s.forgive), 0)
end

-- When there is nothing left to remember.
local function over_at(s)
  if s.forgive == 0 then
    return max(s.last, s.until_at, now) + LONGEST_MS * 1000
  end
  local ends = max(s.until_at, max(s.last, s.until_at) + s.level * s.forgive)
  for _, strike in ipairs(s.strikes) do
    ends = max(ends, strike.at + s.window)
  end
  return ends
end

-- The member of `over` for a strike record.
local function member_of(key, name)
  return pack("<H", #name) .. name .. key
end

local function keep_records(key, found)
  local parts, ends = {}, 0
  for name, s in pairs(found) do
    local over = over_at(s)
    if over <= now then
      redis.call("ZREM", KEYS[OVER], member_of(key, name))
    else
      redis.call("ZADD", KEYS[OVER], text_of(over), member_of(key, name))
      ends = max(ends, over)
      local head = pack("<I4i8i8i8i8HH", s.level, s.last, s.until_at, s.window, s.forgive, #s.strikes, #name)
      parts[#parts + 1] = head .. name
      for _, strike in ipairs(s.strikes) do
        parts[#parts + 1] = pack("<i8I8H", strike.at, strike.weight, #strike.source) .. strike.source
      end
    end
  end
  if ends == 0 then
    redis.call("HDEL", KEYS[STANDINGS], key)
    return
  end
  redis.call("HSET", KEYS[STANDINGS], key, table.concat(parts))
  keep(STANDINGS, ends)
  keep(OVER, ends)
end

local function forget_record(member)
  redis.call("ZREM", KEYS[OVER], member)
  local size = unpack_from("<H", member)
  local name, key = sub(member, 3, size + 2), sub(member, size + 3)
  local found = records_of(key)
  if found[name] then
    found[name] = nil
    keep_records(key, found)
  end
end

-- Make room for one more strike record; tell whether one had to be forgotten that was not over.
local function make_room(most)
  local over = redis.call("ZRANGEBYSCORE", KEYS[OVER], "-inf", text_of(now), "LIMIT", 0, 2)
  for _, member in ipairs(over) do
    forget_record(member)
  end
  if redis.call("ZCARD", KEYS[OVER]) < most then
    return false
  end
  forget_record(redis.call("ZRANGE", KEYS[OVER], 0, 0)[1])
  return true
end

-- Count a strike; true if a ban is due.
local function count_strike(s, policy, weight, source)
  s.window, s.forgive = policy.window, policy.forgive
  if now < s.until_at then
    return false
  end
  s.level = level_at(s)
  s.last = now
  local at, kept, total = now - now % policy.grain, {}, 0
  for _, strike in ipairs(s.strikes) do
    if strike.at > now - policy.window and (source == "" or strike.source ~= source) then
      kept[#kept + 1] = strike
      total = total + strike.weight
    end
  end
  weight = min(weight, policy.amount)
  local newest = kept[#kept]
  if newest and newest.at == at and source == "" then
    total = total - newest.weight
    kept[#kept] = { at = at, weight = min(newest.weight + weight, policy.amount), source = "" }
  else
    kept[#kept + 1] = { at = at, weight = weight, source = source }
  end
  total = total + kept[#kept].weight
  while total - kept[1].weight >= policy.amount do
    total = total - table.remove(kept, 1).weight
  end
  s.strikes = kept
  return total >= policy.amount
end

-- Go one level up, and return how long the ban lasts, as `BanPolicy.length_us`.
local function next_length(s, policy, key)
  s.level = s.level + 1
  s.strikes = {}
  local length = policy.ladder[min(s.level, #policy.ladder)]
  if policy.jitter > 0 then
    local share = tonumber(sub(redis.sha1hex(policy.name .. "\n" .. key .. "\n" .. text_of(s.level)), 1, 4), 16)
    length = min(length + floor(floor(length * policy.jitter) / 65536) * share, policy.longest)
  end
  s.until_at = now + length
  return length
end
