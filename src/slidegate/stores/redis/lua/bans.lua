-- The commands about bans, strikes, permits and stats, one in each call: ARGV[1] is its name, and ARGV[2] the time, -1 for
-- the server's. Every answer starts with the time.

local LONGEST_MS = 400 * 86400000
local now = time_of(ARGV[2])
local commands = {}

local function answer(...)
  return { pack("<i8", now), ... }
end

-- Return the ban of a key, and its strike record in the field ARGV[3]. KEYS: the hash of its windows, that of its records.
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

-- Compare and set: if ban and record of a key are still ARGV[4] and ARGV[5], replace them by ARGV[6] and ARGV[8], with TTLs
-- of ARGV[7] and ARGV[9] ms. Return the ban and the record as stored now, and 1 if they were written.
function commands.write()
  local ban, record = ban_in_force(KEYS[1], now), redis.call("HGET", KEYS[2], ARGV[3]) or ""
  if ban ~= ARGV[4] or record ~= ARGV[5] then
    return answer(ban, record, 0)
  end
  put(KEYS[1], BAN, ARGV[6], ARGV[7])
  put(KEYS[2], ARGV[3], ARGV[8], ARGV[9])
  return answer(ARGV[6], ARGV[8], 1)
end

-- Replace the ban of a key by ARGV[3], "" for none, with a TTL of ARGV[4] ms.
function commands.put()
  put(KEYS[1], BAN, ARGV[3], ARGV[4])
  return answer()
end

-- Delete the ban and the strike records of a key; return its ban, and 1 if a record had not expired.
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

-- Extend permits that have not expired to ARGV[3] us from now: ARGV[4 + n] has those in the set KEYS[n], concatenated. Each
-- set gets a TTL of at least ARGV[4] ms. Return the result for each permit.
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

-- Write statistics rows of the worker ARGV[3]: KEYS are their hashes; for each row, the value and the microseconds for
-- which it is kept follow the worker.
--
-- A hash has the rows of all workers under one rollup and number, and a TTL. Each row also starts with its own expiry time,
-- because a hash that other workers keep writing to would retain the rows of dead workers.
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

-- The commands about all bans. KEYS: the hash with identity and version, the banned keys by end, the network bans by key.
local META, INDEX, NETWORKS = 1, 2, 3

local function count_bans()
  return try("ZCOUNT", KEYS[INDEX], "(" .. text_of(now), "+inf") or 0
end

local function networks_in_force()
  local rows, fields = {}, try("HGETALL", KEYS[NETWORKS]) or {}
  for at = 1, #fields, 2 do
    local fine, row = pcall(row_in_force, KEYS[NETWORKS], fields[at], fields[at + 1], now)
    if fine and row ~= "" then -- an unreadable value bans nobody
      rows[#rows + 1] = fields[at]
      rows[#rows + 1] = row
    end
  end
  return rows
end

local function note(field, value)
  return try("HSET", KEYS[META], field, value) and redis.call("PEXPIRE", KEYS[META], LONGEST_MS)
end

-- Add the key ARGV[3], if given, to the index, with its ban's end ARGV[4], "+inf" for never. Return the number of bans.
function commands.note()
  if ARGV[3] and try("ZADD", KEYS[INDEX], ARGV[4], ARGV[3]) then
    live_for(KEYS[INDEX], LONGEST_MS, 0)
    redis.call("ZREMRANGEBYSCORE", KEYS[INDEX], "-inf", text_of(now))
  end
  return answer(count_bans())
end

-- Store the network ban ARGV[4] of ARGV[3], with a TTL of ARGV[5] ms, unless there are ARGV[6] others; ARGV[7] names the new
-- version of the list. Return 1 if it was written.
function commands.ban_network()
  local rows = networks_in_force()
  if #rows / 2 >= tonumber(ARGV[6]) and redis.call("HEXISTS", KEYS[NETWORKS], ARGV[3]) == 0 then
    return answer(0)
  end
  put(KEYS[NETWORKS], ARGV[3], ARGV[4], ARGV[5])
  note("networks", ARGV[7])
  return answer(1)
end

-- Lift the ban of the key ARGV[3]; ARGV[4] names the new version of the network list. Return the row of a network ban.
function commands.lift()
  local stored = try("HGET", KEYS[NETWORKS], ARGV[3])
  try("ZREM", KEYS[INDEX], ARGV[3])
  try("HDEL", KEYS[NETWORKS], ARGV[3])
  note("networks", ARGV[4])
  return answer(stored or "")
end

-- Return the number of bans, the version of the network list, and the identity of the data. If the data has none, it becomes
-- ARGV[3], unless that is "".
function commands.news()
  local stored = try("HMGET", KEYS[META], "networks", "life") or {}
  local life = stored[2] or (ARGV[3] ~= "" and note("life", ARGV[3]) and ARGV[3]) or ""
  return answer(count_bans(), stored[1] or "", life)
end

-- Return the version of the network list, and the keys and rows of its bans.
function commands.networks()
  return answer(try("HGET", KEYS[META], "networks") or "", networks_in_force())
end

return commands[ARGV[1]]()
