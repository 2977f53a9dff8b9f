-- What stands in Redis about bans. All of it lies in one slot of a cluster:
--
--   meta        numbers: `bans` (of the last change), `floor` (below it changes are not known any more), `ahead` and
--               `latest` of the bans' time; and what else the store keeps there
--   list        a ban for each key          ends       keys by the end of their ban
--   changes     keys by the number of their last change, the latest `MOST_CHANGES`
--   history     the latest `MOST_HISTORY` changes, newest first
--   standings   for each key, how it stands under each policy     over       keys by the moment when they are forgotten
--   prefixes    keys that may be prefixes banned by a policy
--
-- Time here never runs back, see core/bans.py: where the server's clock does, `ahead` makes up for it.

local MOST_CHANGES, MOST_HISTORY = 4096, 10000
local LONGEST_MS = 400 * 86400000
local META, LIST, ENDS, CHANGES, HISTORY, STANDINGS, OVER, PREFIXES = 1, 2, 3, 4, 5, 6, 7, 8

local wall, slack_ms = tonumber(ARGV[1]), 86400000
if wall < 0 then
  local clock = redis.call("TIME")
  wall, slack_ms = clock[1] * 1000000 + clock[2], 1000
end

local function text_of(number)
  return string.format("%.0f", number)
end

local numbers = redis.call("HMGET", KEYS[META], "bans", "ahead", "latest", "hands")
local last, ahead, latest = tonumber(numbers[1] or 0), tonumber(numbers[2] or 0), tonumber(numbers[3] or 0)
local now = max(wall + ahead, latest)

local function keep_time()
  redis.call("HSET", KEYS[META], "ahead", text_of(ahead), "latest", text_of(now))
end

if wall + ahead < latest then
  ahead = latest - wall
  keep_time()
end

-- Let a key live until a moment, if it does not live longer already, or for ever.
local function keep(name, until_at, for_ever)
  local needed_ms = math.ceil((until_at - now) / 1000) + slack_ms
  local left_ms = redis.call("PTTL", KEYS[name])
  if left_ms < needed_ms and not (for_ever and left_ms == -1) then
    redis.call("PEXPIRE", KEYS[name], needed_ms)
  end
end

local function unpack_ban(key, row)
  local ban = { key = key }
  local from, by
  ban.made, ban.ends, ban.wall, ban.prolong, ban.rung, by, from = unpack_from("<i8i8i8i8I4H", row)
  ban.by, ban.reason = sub(row, from, from + by - 1), sub(row, from + by)
  return ban
end

local function pack_ban(ban)
  return pack("<i8i8i8i8I4H", ban.made, ban.ends, ban.wall, ban.prolong, ban.rung, #ban.by) .. ban.by .. ban.reason
end

local function is_over(ban)
  return ban.ends >= 0 and (now >= ban.ends or wall >= ban.wall + ban.ends - ban.made)
end

local function ban_of(key)
  local row = redis.call("HGET", KEYS[LIST], key)
  return row and unpack_ban(key, row)
end

local function note_change(key)
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
  redis.call("HDEL", KEYS[LIST], key)
  redis.call("ZREM", KEYS[ENDS], key)
end

local function all_end()
  return redis.call("HLEN", KEYS[LIST]) == redis.call("ZCARD", KEYS[ENDS])
end

-- Put a ban in force, in the place of one of the same key.
local function record(ban)
  redis.call("HSET", KEYS[LIST], ban.key, pack_ban(ban))
  if ban.ends >= 0 then
    redis.call("ZADD", KEYS[ENDS], text_of(ban.ends), ban.key)
    keep(ENDS, ban.ends)
    keep(LIST, ban.ends, not all_end())
  else
    redis.call("ZREM", KEYS[ENDS], ban.key)
    redis.call("PERSIST", KEYS[LIST])
  end
  if ban.rung > 0 and sub(ban.by, -7) == "/prefix" then
    redis.call("SADD", KEYS[PREFIXES], ban.key)
    redis.call("PEXPIRE", KEYS[PREFIXES], LONGEST_MS)
  end
  note_change(ban.key)
end

local function remember(kind, ban, by)
  local entry = pack("<Bi8HH", kind, wall, #by, #ban.key) .. by .. ban.key .. pack_ban(ban)
  redis.call("LPUSH", KEYS[HISTORY], entry)
  redis.call("LTRIM", KEYS[HISTORY], 0, MOST_HISTORY - 1)
  redis.call("PEXPIRE", KEYS[HISTORY], LONGEST_MS)
end

-- Forget bans that are over, at most so many.
local function let_go(most)
  for _, key in ipairs(redis.call("ZRANGEBYSCORE", KEYS[ENDS], "-inf", text_of(now), "LIMIT", 0, most)) do
    remove_ban(key)
  end
end
