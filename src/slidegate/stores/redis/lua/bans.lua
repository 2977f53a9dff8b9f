-- The keys of Redis that hold bans. All of them lie in one slot of a cluster:
--
--   meta        `life`, which is another one after a loss of data; `number`, of the last change that workers have to
--               forget answers for: of bans, and of what was handed back; `reset`, when all windows were reset; `ahead`
--               and `latest` of the bans' time; and `parts`, until when each of the next four lives
--   list        a ban for each key, see banned.lua     ends       keys by the end of their ban
--   records     for each key, its strikes under each policy     over     these records by when they are forgotten

local LONGEST_MS = 400 * 86400000
local MOST_US = 2 ^ 53 -- up to here doubles are exact
local SURE_US = 1000000 -- how long before its end a key of Redis has not expired for certain
local META, LIST, ENDS, RECORDS, OVER = 1, 2, 3, 4, 5
local BANNED, UNBANNED, SHADOW, FULL, DROPPED = 1, 2, 3, 4, 5
local NO_NETWORK = "key"

local wall, slack_ms = tonumber(ARGV[1]), 86400000
if wall < 0 then
  local clock = redis.call("TIME")
  wall, slack_ms = clock[1] * 1000000 + clock[2], 1000
end

local function text_of(number)
  return string.format("%.0f", number)
end

local stored = redis.call("HMGET", KEYS[META], "life", "number", "reset", "ahead", "latest", "parts")
local life, number, reset, parts = stored[1] or "", stored[2] or 0, tonumber(stored[3]) or -1, stored[6]
local now, ahead = time_of_bans(KEYS[META], wall, tonumber(stored[4]) or 0, tonumber(stored[5]) or 0)

-- Have all workers forget what they answer without asking.
local function renumber()
  number = redis.call("HINCRBY", KEYS[META], "number", 1)
end

-- Let a key live until a moment, if it does not live longer already, or for ever.
local function keep(name, until_at, for_ever)
  local needed_ms = math.ceil((until_at - now) / 1000) + slack_ms
  local left_ms = redis.call("PTTL", KEYS[name])
  if left_ms < needed_ms and not (for_ever and left_ms == -1) then
    redis.call("PEXPIRE", KEYS[name], needed_ms)
  end
end

local function pack_ban(ban)
  return pack("<i8i8i8I4Hc0", ban.made, ban.ends, ban.wall, ban.level, #ban.by, ban.by) .. ban.reason
end

local function ban_of(key)
  local row = redis.call("HGET", KEYS[LIST], key)
  return row and unpack_ban(key, row)
end

local function count_bans()
  return redis.call("HLEN", KEYS[LIST]) - redis.call("HEXISTS", KEYS[LIST], KINDS)
end

-- The kind of a ban, as `Ban.network`. A key that only looks like a network does no harm: a look-up for its length finds
-- nothing.
local function kind_of(ban)
  if ban.level > 0 then
    return NO_NETWORK
  end
  local four = match(ban.key, "^%d+%.%d+%.%d+%.%d+/(%d+)$")
  local six = match(ban.key, "^[%x:]+/(%d+)$")
  return four and "4/" .. four or six and six ~= "64" and "6/" .. six or NO_NETWORK
end

-- Take note that a ban was put in or taken out.
local function count_kind(ban, step)
  local many, texts = { [kind_of(ban)] = step }, {}
  for kind, before in gmatch(kinds_of(KEYS[LIST]), "(%S+)=(%d+)") do
    many[kind] = (many[kind] or 0) + before
  end
  for kind, count in pairs(many) do
    if count > 0 then
      texts[#texts + 1] = kind .. "=" .. count
    end
  end
  table.sort(texts) -- so that the kinds stand in the same order, however many there are of each
  if #texts > 0 then
    redis.call("HSET", KEYS[LIST], KINDS, table.concat(texts, " "))
  else
    redis.call("HDEL", KEYS[LIST], KINDS)
  end
end

local function count_networks()
  local many = 0
  for count in gmatch(kinds_of(KEYS[LIST]), "/%d+=(%d+)") do
    many = many + count
  end
  return many
end

local function remove_ban(key)
  local ban = ban_of(key)
  if ban then
    redis.call("HDEL", KEYS[LIST], key)
    count_kind(ban, -1)
  end
  redis.call("ZREM", KEYS[ENDS], key)
end

local function all_end()
  return count_bans() == redis.call("ZCARD", KEYS[ENDS])
end

-- Put a ban in force, in the place of one of the same key.
local function record(ban)
  local before = ban_of(ban.key)
  if before then
    count_kind(before, -1)
  end
  redis.call("HSET", KEYS[LIST], ban.key, pack_ban(ban))
  count_kind(ban, 1)
  if ban.ends >= 0 then
    redis.call("ZADD", KEYS[ENDS], text_of(ban.ends), ban.key)
    keep(ENDS, ban.ends)
    keep(LIST, ban.ends, not all_end())
  else
    redis.call("ZREM", KEYS[ENDS], ban.key)
    redis.call("PERSIST", KEYS[LIST])
  end
end

local events = {} -- which the caller puts into words

local function tell(kind, key, ban)
  events[#events + 1] = pack("<BHc0", kind, #key, key) .. (ban and pack_ban(ban) or "")
end

-- Tell of a ban that was made or taken back.
local function change(kind, ban)
  tell(kind, ban.key, ban)
  renumber()
end

-- Forget bans that are over, at most so many; return how many there were.
local function let_go(max_count)
  local over = redis.call("ZRANGEBYSCORE", KEYS[ENDS], "-inf", text_of(now), "LIMIT", 0, max_count)
  for _, key in ipairs(over) do
    remove_ban(key)
  end
  return #over
end

-- Note the bans' time, and until when each part lives: 0 where there is none, -1 for ever.
local function note_meta()
  local ends = {}
  for place = LIST, OVER do
    local left_ms = redis.call("PTTL", KEYS[place])
    ends[place - 1] = pack("<i8", left_ms == -2 and 0 or left_ms == -1 and -1 or now + left_ms * 1000)
  end
  redis.call("HSET", KEYS[META], "ahead", text_of(ahead), "latest", text_of(now), "parts", table.concat(ends))
end

local function is_lost(place)
  local ends = unpack_from("<i8", parts, 8 * (place - LIST) + 1)
  return (ends == -1 or ends > now + SURE_US) and redis.call("EXISTS", KEYS[place]) == 0
end

-- Redis may evict any key, and a list of bans without their ends, or strike records without theirs, would never be forgotten:
-- so they go together. Where bans are lost the data has another life from now on, so that all workers learn of it.
if parts and (is_lost(RECORDS) or is_lost(OVER)) then
  redis.call("UNLINK", KEYS[RECORDS], KEYS[OVER])
  note_meta()
end
if parts and (is_lost(LIST) or is_lost(ENDS)) then
  redis.call("UNLINK", KEYS[LIST], KEYS[ENDS])
  life = sub(redis.sha1hex(life .. text_of(now)), 1, LIFE_BYTES)
  redis.call("HSET", KEYS[META], "life", life)
  note_meta()
end

-- How keys stand under policies, as core/bans/strikes.py. A record is a table like `StrikeRecord`.

local function unpack_records(row)
  local found, at = {}, 1
  while at <= #row do
    local s, name, many = { strikes = {} }, nil, nil
    s.level, s.last, s.until_at, s.over, many, name, at = unpack_from("<I4i8i8i8HHc0", row, at)
    found[name] = s
    for place = 1, many do
      local strike = {}
      strike.at, strike.weight, at = unpack_from("<i8I8", row, at)
      s.strikes[place] = strike
    end
  end
  return found
end

local function records_of(key)
  return unpack_records(redis.call("HGET", KEYS[RECORDS], key) or "")
end

-- The member of `over` for a strike record.
local function member_of(key, name)
  return pack("<Hc0", #name, name) .. key
end

-- Write the strike records of a key, those that are not over.
local function keep_records(key, found)
  local rows, ends = {}, 0
  for name, s in pairs(found) do
    if s.over <= now then
      redis.call("ZREM", KEYS[OVER], member_of(key, name))
    else
      redis.call("ZADD", KEYS[OVER], text_of(s.over), member_of(key, name))
      ends = max(ends, s.over)
      rows[#rows + 1] = pack("<I4i8i8i8HHc0", s.level, s.last, s.until_at, s.over, #s.strikes, #name, name)
      for _, strike in ipairs(s.strikes) do
        rows[#rows + 1] = pack("<i8I8", strike.at, strike.weight)
      end
    end
  end
  if ends == 0 then
    redis.call("HDEL", KEYS[RECORDS], key)
    return
  end
  redis.call("HSET", KEYS[RECORDS], key, table.concat(rows))
  keep(RECORDS, ends)
  keep(OVER, ends)
end

local function forget_record(member)
  redis.call("ZREM", KEYS[OVER], member)
  local name, from = unpack_from("<Hc0", member)
  local key = sub(member, from)
  local found = records_of(key)
  if found[name] then
    found[name] = nil
    keep_records(key, found)
  end
end

-- Make room for one more strike record; tell whether one had to be forgotten that was not over.
local function make_room(max_bans)
  local over = redis.call("ZRANGEBYSCORE", KEYS[OVER], "-inf", text_of(now), "LIMIT", 0, 2)
  for _, member in ipairs(over) do
    forget_record(member)
  end
  if redis.call("ZCARD", KEYS[OVER]) < max_bans then
    return false
  end
  forget_record(redis.call("ZRANGE", KEYS[OVER], 0, 0)[1])
  return true
end

-- When a record is over that is clean from a moment on.
local function over_at(clean_from, s, policy)
  return min(clean_from + s.level * policy.forgive, MOST_US)
end

-- Count a strike, as `StrikeRecord.struck`; true if a ban is due.
local function count_strike(s, policy, weight)
  if not policy.shadow then
    s.until_at = min(s.until_at, now)
  end
  if now < s.until_at then
    return false
  end
  local clean = max(now - max(s.last, s.until_at), 0)
  s.level = max(s.level - floor(clean / policy.forgive), 0)
  s.last = now
  local at, kept, total = now - now % policy.grain, {}, 0
  for _, strike in ipairs(s.strikes) do
    if strike.at > now - policy.window then
      kept[#kept + 1] = strike
      total = total + strike.weight
    end
  end
  local newest = kept[#kept]
  if newest and newest.at == at then
    kept[#kept] = nil
    total, weight = total - newest.weight, weight + newest.weight
  end
  weight = min(weight, policy.amount)
  kept[#kept + 1] = { at = at, weight = weight }
  total = total + weight
  while total - kept[1].weight >= policy.amount do
    total = total - table.remove(kept, 1).weight
  end
  s.strikes, s.over = kept, max(at + policy.window, over_at(now, s, policy))
  return total >= policy.amount
end

-- Make the ban that the last strike has made due, as `StrikeRecord.banned`.
local function make_ban(s, policy, key, reason)
  s.level, s.strikes = s.level + 1, {}
  s.until_at = now + policy.ladder[min(s.level, #policy.ladder)]
  s.over = over_at(s.until_at, s, policy)
  return { key = key, reason = reason, by = policy.name, level = s.level, made = now, ends = s.until_at, wall = wall }
end
