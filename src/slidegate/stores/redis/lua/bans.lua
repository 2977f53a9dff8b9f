-- What is asked besides the questions of requests, one command a call: ARGV[1] is its name, and ARGV[2] the time, -1 for the
-- server's. Each answers with the time first.

local LONGEST_MS = 400 * 86400000
local now = time_of(ARGV[2])
local commands = {}

local function answer(...)
  return { pack("<i8", now), ... }
end

-- Of a key whose windows are KEYS[1] and whose strike records are KEYS[2]: its ban, and its record in the field ARGV[3].
function commands.read()
  return answer(ban_in_force(KEYS[1], now), redis.call("HGET", KEYS[2], ARGV[3]) or "")
end

local function put(name, field, value, left_ms)
  if value == "" then
    redis.call("HDEL", name, field)
  else
    redis.call("HSET", name, field, value)
    live_for(name, tonumber(left_ms), 0)
  end
end

local function put_ban(name, field, row, left_ms)
  put(name, field, row ~= "" and pack("<i8", now) .. row or "", left_ms)
end

-- Write the ban ARGV[6] and the record ARGV[8] of a key in the place of ARGV[4] and ARGV[5], where these are what is there,
-- and let them live for ARGV[7] and ARGV[9] ms; answer with what is there, and whether it was written.
function commands.write()
  local ban, record = ban_in_force(KEYS[1], now), redis.call("HGET", KEYS[2], ARGV[3]) or ""
  if ban ~= ARGV[4] or record ~= ARGV[5] then
    return answer(ban, record, 0)
  end
  put_ban(KEYS[1], BAN, ARGV[6], ARGV[7])
  put(KEYS[2], ARGV[3], ARGV[8], ARGV[9])
  return answer(ARGV[6], ARGV[8], 1)
end

-- Put the ban ARGV[3], which lives for ARGV[4] ms, in the place of the one that a key has; "" for none.
function commands.put()
  put_ban(KEYS[1], BAN, ARGV[3], ARGV[4])
  return answer()
end

-- Forget the ban and the records of a key; answer with its ban, and whether a record had anything to remember.
function commands.forget()
  local ban, remembered = ban_in_force(KEYS[1], now), 0
  local fields = redis.call("HGETALL", KEYS[2])
  for at = 2, #fields, 2 do
    if unpack_from("<i8", fields[at]) > now then
      remembered = 1
    end
  end
  redis.call("HDEL", KEYS[1], BAN)
  redis.call("UNLINK", KEYS[2])
  return answer(ban, remembered)
end

local MEMBER_BYTES = 12
local LOST, RENEWED, FAILED = 0, 1, 2

local function renew(name, member, ends)
  local held_until = tonumber((redis.call("ZSCORE", name, member)))
  if not held_until or held_until <= now then
    return LOST
  end
  redis.call("ZADD", name, text_of(ends), member)
  return RENEWED
end

-- Let permits that have not run out be held for ARGV[3] us from now: ARGV[4 + n] are those in the set KEYS[n], one behind
-- the other, which lives for ARGV[4] ms at least. Answer how each has fared.
function commands.renew()
  local ends, fates = now + tonumber(ARGV[3]), {}
  for place, name in ipairs(KEYS) do
    local members = ARGV[4 + place]
    for at = 1, #members, MEMBER_BYTES do
      local fine, fate = pcall(renew, name, sub(members, at, at + MEMBER_BYTES - 1), ends)
      fates[#fates + 1] = pack("<B", fine and fate or FAILED)
    end
    live_for(name, tonumber(ARGV[4]), 0)
  end
  return answer(table.concat(fates))
end

-- Write the rows of statistics of the worker ARGV[3]: KEYS are their hashes, and behind the worker stand for each row its
-- value and for how many microseconds it is kept.
--
-- A hash holds the rows of all workers under one rollup and number. It goes by its TTL; a row in it begins with the
-- moment until which it is kept, because a hash that other workers go on writing would keep the rows of the dead.
function commands.write_stats()
  for place, key in ipairs(KEYS) do
    local value, kept = ARGV[2 * place + 2], tonumber(ARGV[2 * place + 3])
    if kept > 0 then
      redis.call("HSET", key, ARGV[3], string.format("%020.0f", now + kept) .. value)
      live_for(key, kept / 1000, 1)
    else
      redis.call("HDEL", key, ARGV[3])
    end
    local rows = sub(key, -2) == ":0" and redis.call("HGETALL", key) or {}
    for at = 1, #rows, 2 do
      if tonumber(sub(rows[at + 1], 1, 20)) <= now then
        redis.call("HDEL", key, rows[at])
      end
    end
  end
  return answer()
end

-- The rest is about all bans. KEYS: the hash with the numbers, the keys of bans by their end, the bans of networks by key.
local META, INDEX, NETWORKS = 1, 2, 3

local function count_bans()
  return try("ZCOUNT", KEYS[INDEX], "(" .. text_of(now), "+inf") or 0
end

local function networks_in_force()
  local rows, fields = {}, try("HGETALL", KEYS[NETWORKS]) or {}
  for at = 1, #fields, 2 do
    local fine, row = pcall(row_in_force, KEYS[NETWORKS], fields[at], fields[at + 1], now)
    if fine and row ~= "" then -- what is no ban refuses nobody
      rows[#rows + 1] = fields[at]
      rows[#rows + 1] = row
    end
  end
  return rows
end

local function note(field, value)
  return try("HSET", KEYS[META], field, value) and redis.call("PEXPIRE", KEYS[META], LONGEST_MS)
end

-- Note a ban of the key ARGV[3] that ends at ARGV[4], "+inf" for never, if one is given; answer with how many there are.
function commands.note()
  if ARGV[3] and try("ZADD", KEYS[INDEX], ARGV[4], ARGV[3]) then
    live_for(KEYS[INDEX], LONGEST_MS, 0)
    redis.call("ZREMRANGEBYSCORE", KEYS[INDEX], "-inf", text_of(now))
  end
  return answer(count_bans())
end

-- Ban the network ARGV[3] by the row ARGV[4] that lives for ARGV[5] ms, where there are fewer than ARGV[6] others; ARGV[7]
-- is the name of this version. Answer with whether it was written.
function commands.ban_network()
  local rows = networks_in_force()
  if #rows / 2 >= tonumber(ARGV[6]) and redis.call("HEXISTS", KEYS[NETWORKS], ARGV[3]) == 0 then
    return answer(0)
  end
  put_ban(KEYS[NETWORKS], ARGV[3], ARGV[4], ARGV[5])
  note("networks", ARGV[7])
  return answer(1)
end

-- Lift the ban of the key ARGV[3]; ARGV[4] is the name of this version. Answer with the row, where it was a network's.
function commands.lift()
  local stored = try("HGET", KEYS[NETWORKS], ARGV[3])
  try("ZREM", KEYS[INDEX], ARGV[3])
  try("HDEL", KEYS[NETWORKS], ARGV[3])
  note("networks", ARGV[4])
  return answer(stored and sub(stored, MOMENT_BYTES + 1) or "")
end

-- How many bans there are, the version of those of networks, and the life of the data; one begins as ARGV[3] where there is
-- none, unless that is "".
function commands.news()
  local stored = try("HMGET", KEYS[META], "networks", "life") or {}
  local life = stored[2] or (ARGV[3] ~= "" and note("life", ARGV[3]) and ARGV[3]) or ""
  return answer(count_bans(), stored[1] or "", life)
end

-- The version of the bans of networks, and their keys and rows.
function commands.networks()
  return answer(try("HGET", KEYS[META], "networks") or "", networks_in_force())
end

return commands[ARGV[1]]()
