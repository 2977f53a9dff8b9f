-- The commands about bans and stats, one in each call: ARGV[2] is its name. Every answer starts with the time.

local LONGEST_MS = 400 * 86400000
local FOR_EVER_MS = 100 * 365 * 86400000
local commands = {}

local function answer(...)
  return { pack("<i8", now), ... }
end

local function text_of(moment)
  return string.format("%.0f", moment)
end

-- Store a row that starts with its end, -1 for never.
local function put(name, field, row)
  local ends = unpack_from("<i8", row)
  redis.call("HSET", name, field, row)
  live_for(name, ends < 0 and FOR_EVER_MS or max(ends - now, 0) / 1000)
end

-- Return the fields of a hash and their rows, one after another, without those that have ended.
local function rows_in_force(name)
  local rows, fields = {}, redis.call("HGETALL", name)
  for at = 1, #fields, 2 do
    local row = row_in_force(name, fields[at], fields[at + 1])
    if row ~= "" then
      rows[#rows + 1], rows[#rows + 2] = fields[at], row
    end
  end
  return rows
end

-- Write the row ARGV[4] of the worker ARGV[3], which is kept for ARGV[5] microseconds, into a hash that has the rows of all
-- workers under one rollup and number. Each row starts with its end, because a hash that others keep writing to lives longer.
function commands.write_stats()
  put(KEYS[1], ARGV[3], pack("<i8", max(now + tonumber(ARGV[5]), 0)) .. ARGV[4])
  rows_in_force(KEYS[1])
  return answer()
end

-- Return the rows of some hashes of statistics, with their workers.
function commands.read_stats()
  local hashes = {}
  for place, key in ipairs(KEYS) do
    hashes[place] = rows_in_force(key)
  end
  return answer(hashes)
end

-- Return the next cursor after ARGV[3], and some of the names that match ARGV[4].
function commands.scan()
  local found = redis.call("SCAN", ARGV[3], "MATCH", ARGV[4], "COUNT", 500)
  return answer(found[1], found[2])
end

-- The commands about all bans. KEYS: the hash with identity and version, the banned keys by end, the network bans by key,
-- then hashes of single keys.
local META, INDEX, NETWORKS, FIRST = 1, 2, 3, 4

local function count_bans()
  return redis.call("ZCOUNT", KEYS[INDEX], "(" .. text_of(now), "+inf")
end

local function add_to_index(key, row)
  local ends = unpack_from("<i8", row)
  redis.call("ZADD", KEYS[INDEX], ends < 0 and "+inf" or text_of(ends), key)
  live_for(KEYS[INDEX], LONGEST_MS)
  redis.call("ZREMRANGEBYSCORE", KEYS[INDEX], "-inf", text_of(now))
end

local function set_meta(field, value)
  redis.call("HSET", KEYS[META], field, value)
  redis.call("PEXPIRE", KEYS[META], LONGEST_MS)
  return value
end

-- Return the banned keys.
function commands.keys()
  return answer(redis.call("ZRANGEBYSCORE", KEYS[INDEX], "(" .. text_of(now), "+inf"))
end

-- Store bans of the last KEYS; each has three arguments: the key, the row, and 1 for a network. ARGV[3] names the new
-- version of the list of networks. Return the number of bans.
function commands.put()
  for place = FIRST, #KEYS do
    local at = 3 * (place - FIRST) + 4
    local key, row, is_network = unpack(ARGV, at, at + 2)
    if is_network == "1" then
      put(KEYS[NETWORKS], key, row)
      redis.call("HDEL", KEYS[place], BAN)
      set_meta("networks", ARGV[3])
    else
      put(KEYS[place], BAN, row)
    end
    add_to_index(key, row)
  end
  return answer(count_bans())
end

local LATE, MADE, FULL = 0, 1, 2

-- Put the ban of a key, whose windows and strikes are the last of KEYS: its row, or "" for a shadow ban. Reset the strikes
-- in the field `strikes`. The level in the field `level` was `before`, and becomes `after`. Return LATE if another worker
-- was faster, so that the key is banned, its level is another one, or its strikes are gone; and FULL if there are `most`
-- bans.
function commands.put_next()
  local windows, struck = KEYS[FIRST], KEYS[FIRST + 1]
  local key, row, strikes, level, before, after, most = unpack(ARGV, 3)
  local found = redis.call("HMGET", struck, strikes, level)
  if ban_in_force(windows) ~= "" or not found[1] or (found[2] or "") ~= before then
    return answer(LATE, count_bans())
  end
  if row ~= "" then
    if count_bans() >= tonumber(most) then
      return answer(FULL, count_bans())
    end
    add_to_index(key, row)
    put(windows, BAN, row)
  end
  redis.call("HDEL", struck, strikes)
  put(struck, level, after)
  return answer(MADE, count_bans())
end

-- Lift the ban of the key ARGV[3], whose windows and strikes are the last of KEYS, and delete its strikes and levels; ARGV[4]
-- names the new version of the network list. Return the rows of its own ban and of that of a network, and the number of
-- strikes and levels that had not expired.
function commands.unban()
  local windows, struck = KEYS[FIRST], KEYS[FIRST + 1]
  local ban, of_network = ban_in_force(windows), redis.call("HGET", KEYS[NETWORKS], ARGV[3])
  local remembered = #rows_in_force(struck)
  redis.call("HDEL", windows, BAN)
  redis.call("UNLINK", struck)
  redis.call("ZREM", KEYS[INDEX], ARGV[3])
  if of_network then
    redis.call("HDEL", KEYS[NETWORKS], ARGV[3])
    set_meta("networks", ARGV[4])
  end
  return answer(ban, of_network or "", remembered)
end

-- Return the number of bans, the identity of the data, what the server says of its memory if ARGV[4] is 1, the version of
-- the network list, and the networks with their bans if the version is not ARGV[5]. If the data has no identity, it becomes
-- ARGV[3], unless that is "".
function commands.news()
  local stored = redis.call("HMGET", KEYS[META], "networks", "life")
  local life, version = stored[2] or ARGV[3] ~= "" and set_meta("life", ARGV[3]) or "", stored[1] or ""
  local memory = ARGV[4] == "1" and redis.pcall("INFO", "memory") -- the user may not be allowed to
  local networks = version ~= ARGV[5] and rows_in_force(KEYS[NETWORKS]) or {}
  return answer(count_bans(), life, type(memory) == "string" and memory or "", version, networks)
end

return commands[ARGV[2]]()
