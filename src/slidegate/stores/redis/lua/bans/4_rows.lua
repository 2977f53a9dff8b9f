-- The keys of Redis that hold bans. All of them lie in one slot of a cluster:
--
--   meta        numbers: `bans` (of the last change), `floor` (below it changes are not known any more), `ahead` and
--               `latest` of the bans' time; `parts`, until when each of the others lives; `life`, which is another one
--               after a loss of data; and `hands`, of the last hand-back
--   list        a ban for each key, see banned/     ends       keys by the end of their ban
--   changes     keys by the number of their last change, the latest `MOST_CHANGES`
--   history     the latest `MOST_HISTORY` changes, newest first
--   standings   for each key, how it stands under each policy     over       these standings by when they are forgotten
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

local numbers = redis.call("HMGET", KEYS[META], "bans", "ahead", "latest", "hands", "life", "parts")
local last, ahead, latest = tonumber(numbers[1]) or 0, tonumber(numbers[2]) or 0, tonumber(numbers[3]) or 0
local life, hands, parts = numbers[5] or "", numbers[4] or 0, numbers[6]
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
  if ban.rung > 0 and sub(ban.by, -7) == "/prefix" then
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

-- Redis may evict any key, and a list of bans without their ends, or standings without theirs, would never be forgotten:
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
