-- The commands about bans and stats, one in each call: ARGV[1] is its name, and ARGV[2] the time, -1 for
-- the server's. Every answer starts with the time.

local LONGEST_MS = 400 * 86400000
local now = time_of(ARGV[2])
local commands = {}

local function answer(...)
  return { pack("<i8", now), ... }
end

local function put(name, field, value, left_ms)
  redis.call("HSET", name, field, value)
  live_for(name, tonumber(left_ms), 0)
end

-- Return the rows of the bans of some keys. KEYS: the hashes of their windows.
function commands.bans()
  local rows = {}
  for _, name in ipairs(KEYS) do
    local row = ban_in_force(name, now)
    if row ~= "" then
      rows[#rows + 1] = row
    end
  end
  return answer(rows)
end

-- Return the fields of a hash and their rows, one after another, without those that have ended.
local function rows_in_force(name)
  local rows, fields = {}, redis.call("HGETALL", name)
  for at = 1, #fields, 2 do
    local row = row_in_force(name, fields[at], fields[at + 1], now)
    if row ~= "" then
      rows[#rows + 1], rows[#rows + 2] = fields[at], row
    end
  end
  return rows
end

-- Write rows of the worker ARGV[3]: KEYS are their hashes, which have the rows of all workers under one rollup and
-- number; for each row, the value and the microseconds for which it is kept follow the worker. Each row starts with its
-- end, because a hash that other workers keep writing to lives longer.
function commands.write_stats()
  for place, key in ipairs(KEYS) do
    local value, kept = ARGV[2 * place + 2], tonumber(ARGV[2 * place + 3])
    put(key, ARGV[3], pack("<i8", max(now + kept, 0)) .. value, kept / 1000)
    rows_in_force(key)
  end
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

function commands.time()
  return answer()
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

-- Add a key to the index, with its ban's end, "+inf" for never.
local function add_to_index(key, ends)
  redis.call("ZADD", KEYS[INDEX], ends, key)
  live_for(KEYS[INDEX], LONGEST_MS, 0)
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

-- Store bans of the last KEYS; each has five arguments: the key, its ban's end for the index, the row, its TTL in ms, and 1 for
-- a network. ARGV[3] names the new version of the list of networks. Return the number of bans.
function commands.put()
  for place = FIRST, #KEYS do
    local at = 5 * (place - FIRST) + 4
    local key, ends, row, left_ms, is_network = unpack(ARGV, at, at + 4)
    if is_network == "1" then
      put(KEYS[NETWORKS], key, row, left_ms)
      redis.call("HDEL", KEYS[place], BAN)
      set_meta("networks", ARGV[3])
    else
      put(KEYS[place], BAN, row, left_ms)
    end
    add_to_index(key, ends)
  end
  return answer(count_bans())
end

local LATE, MADE, FULL = 0, 1, 2

-- Put the ban of the key ARGV[3], whose windows and strikes are the last of KEYS: its end for the index, its row ("" for a
-- shadow ban), and its TTL in ms. Reset the strikes in the field ARGV[7]. The level in the field ARGV[8] was ARGV[9], and
-- becomes ARGV[10], with a TTL of ARGV[11] ms. Return LATE if another worker was faster, so that the key is banned, its level
-- is another one, or its strikes are gone; and FULL if there are ARGV[12] bans.
function commands.put_next()
  local windows, struck = KEYS[FIRST], KEYS[FIRST + 1]
  local level = redis.call("HGET", struck, ARGV[8]) or ""
  if ban_in_force(windows, now) ~= "" or level ~= ARGV[9] or redis.call("HEXISTS", struck, ARGV[7]) == 0 then
    return answer(LATE, count_bans())
  end
  if ARGV[5] ~= "" then
    if count_bans() >= tonumber(ARGV[12]) then
      return answer(FULL, count_bans())
    end
    add_to_index(ARGV[3], ARGV[4])
    put(windows, BAN, ARGV[5], ARGV[6])
  end
  redis.call("HDEL", struck, ARGV[7])
  put(struck, ARGV[8], ARGV[10], ARGV[11])
  return answer(MADE, count_bans())
end

-- Lift the ban of the key ARGV[3], whose windows and strikes are the last of KEYS, and delete its strikes and levels; ARGV[4]
-- names the new version of the network list. Return the rows of its own ban and of that of a network, and 1 if a strike or a
-- level had not expired.
function commands.unban()
  local windows, struck, remembered = KEYS[FIRST], KEYS[FIRST + 1], 0
  local ban, of_network = ban_in_force(windows, now), redis.call("HGET", KEYS[NETWORKS], ARGV[3])
  for at, value in ipairs(redis.call("HGETALL", struck)) do
    if at % 2 == 0 and unpack_from("<i8", value) > now then
      remembered = 1
    end
  end
  redis.call("HDEL", windows, BAN)
  redis.call("UNLINK", struck)
  redis.call("ZREM", KEYS[INDEX], ARGV[3])
  if of_network then
    redis.call("HDEL", KEYS[NETWORKS], ARGV[3])
    set_meta("networks", ARGV[4])
  end
  return answer(ban, of_network or "", remembered)
end

-- Return the number of bans, the version of the network list, the identity of the data, and if ARGV[4] is 1, what the server
-- says of its memory. If the data has no identity, it becomes ARGV[3], unless that is "".
function commands.news()
  local stored = redis.call("HMGET", KEYS[META], "networks", "life")
  local life = stored[2] or ARGV[3] ~= "" and set_meta("life", ARGV[3]) or ""
  local memory = ARGV[4] == "1" and redis.pcall("INFO", "memory") -- the user may not be allowed to
  return answer(count_bans(), stored[1] or "", life, type(memory) == "string" and memory or "")
end

-- Return the version of the network list, and its networks and their bans.
function commands.networks()
  return answer(redis.call("HGET", KEYS[META], "networks") or "", rows_in_force(KEYS[NETWORKS]))
end

return commands[ARGV[1]]()
