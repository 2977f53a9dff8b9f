-- The commands about bans and rows of workers. Their arguments are in ARGV, behind those of the commands before them; `key_at` returns
-- their keys by their places. Most calls have no command, so these functions are defined by the first one of a call.

local function define_commands()
  local FOR_EVER_MS = 3153600000000 -- 100 years
  local commands = {}

  local function text_of(moment)
    return string.format("%.0f", moment)
  end

  -- Return the end with which a row starts, 0 for one that is too short.
  local function end_of(row)
    local ends = #row < ENDS_BYTES and 0 or unpack_from("<i8", row)
    return ends < 0 and math.huge or ends
  end

  -- Make a key live for at least as long as a row.
  local function live_with(name, row)
    live_for(name, min(max(end_of(row) - now, 0) / 1000, FOR_EVER_MS))
  end

  -- Store a row that starts with its end, -1 for never.
  local function put(name, field, row)
    store(name, field, row)
    live_with(name, row)
  end

  -- Return the fields of a hash and their rows, one after another, without those that have ended; and how many have.
  local function rows_in_force(name)
    local rows, fields = {}, redis.call("HGETALL", name)
    for at = 1, #fields, 2 do
      local row = row_in_force(name, fields[at], fields[at + 1])
      if row ~= "" then
        rows[#rows + 1], rows[#rows + 2] = fields[at], row
      end
    end
    return rows, (#fields - #rows) / 2
  end

  -- Write a row of a worker, which is kept for some microseconds, into a hash that has the rows of all workers of one
  -- kind and number. Each row starts with its end, because a hash that others keep writing to lives longer.
  function commands.write_row(worker, value, kept)
    put(key_at(1), worker, pack("<i8", max(now + tonumber(kept), 0)) .. value)
    rows_in_force(key_at(1))
  end

  -- Return the rows of workers in a hash, with their workers.
  function commands.read_rows()
    return (rows_in_force(key_at(1)))
  end

  -- Return the next cursor, "0" at the end, and some of the names of hashes that match a pattern. It looks at 500 keys, which
  -- takes less than a millisecond.
  function commands.names(cursor, pattern)
    return redis.call("SCAN", cursor, "MATCH", pattern, "COUNT", 500)
  end

  -- Reset the windows in a hash, but not the permits; return whether any had units that have not left, as 1 or 0.
  -- `only` has the digests of the names of buckets whose windows are meant; nil for all.
  local function reset(name, only)
    local had_units, fields = 0, redis.call("HGETALL", name)
    for at = 1, #fields, 2 do
      local field = fields[at]
      local kind = kind_of(field)
      local digest = sub(field, -FIELD_BYTES, NAME_BYTES - FIELD_BYTES - 1)
      if (kind == QUOTA_ROW or kind == WINDOW) and (not only or only[digest]) then
        if end_of_value(field, fields[at + 1]) > now then
          had_units = 1
        end
        redis.call("HDEL", name, field)
      end
    end
    return had_units
  end

  function commands.reset(...)
    local had_units, only = 0, nil
    for _, digest in ipairs({ ... }) do
      only = only or {}
      only[digest] = true
    end
    for place = 1, keys_here do
      had_units = max(had_units, reset(key_at(place), only))
    end
    return had_units
  end

  -- The keys of commands about all bans: the hash with identity and version, the banned keys by end, the network bans by key,
  -- then hashes of single keys.
  local META = 1
  local INDEX = 2
  local NETWORKS = 3
  local FIRST = 4
  local PAGE = 500 -- how many banned keys are removed in one command, which takes less than a millisecond; twice as many are listed

  local function count_bans()
    return redis.call("ZCOUNT", key_at(INDEX), "(" .. text_of(now), "+inf")
  end

  -- Index a key by the later end of its bans.
  local function add_to_index(key, row)
    local ends, index = end_of(row), key_at(INDEX)
    redis.call("ZADD", index, "GT", ends == math.huge and "+inf" or text_of(ends), key)
    live_with(index, row)
  end

  local has_trimmed = false

  -- Remove a page of the ended bans from the index. Each call that adds some does it once, so that they do not pile up.
  local function trim_index()
    if has_trimmed then
      return
    end
    local index = key_at(INDEX)
    has_trimmed = true
    local ended = redis.call("ZRANGEBYSCORE", index, "-inf", text_of(now), "LIMIT", 0, PAGE)
    if ended[1] then
      redis.call("ZREM", index, unpack(ended))
    end
  end

  local function set_meta(field, value)
    store(key_at(META), field, value)
    redis.call("PEXPIRE", key_at(META), FOR_EVER_MS)
    return value
  end

  -- Remove the ban of a key, and let its hash live as long as its windows again: a permanent ban lets it live for ever.
  local function remove_ban(name)
    if redis.call("HDEL", name, BAN) == 0 then
      return
    end
    local left_us, fields = 0, redis.call("HGETALL", name)
    for at = 1, #fields, 2 do
      left_us = max(left_us, end_of_value(fields[at], fields[at + 1]) + kept_after_end(fields[at]) - now)
    end
    local left_ms = math.ceil(left_us / 1000) + slack_ms
    if redis.call("PTTL", name) > left_ms then
      redis.call("PEXPIRE", name, left_ms)
    end
  end

  -- Return a page of the banned keys, some of them perhaps again: the next cursor, "0" at the end, and the keys.
  function commands.keys(cursor)
    local scanned, keys = redis.call("ZSCAN", key_at(INDEX), cursor, "COUNT", 2 * PAGE), {}
    for at = 1, #scanned[2], 2 do
      if tonumber(scanned[2][at + 1]) > now then
        keys[#keys + 1] = scanned[2][at]
      end
    end
    return { scanned[1], keys }
  end

  -- Return the ban in force of a network; "" if there is none.
  local function ban_of_network(key)
    local row = redis.call("HGET", key_at(NETWORKS), key)
    return row and end_of(row) > now and row or ""
  end

  -- Return the key of a network with whose ban more than `most` networks would be banned; "" if there is room for all of
  -- some bans, see `put`.
  local function network_beyond(most, bans)
    local new, last, count = {}, "", 0
    for at = 1, #bans, 3 do
      local key, row, is_network = unpack(bans, at, at + 2)
      if is_network == "1" and end_of(row) > now and not new[key] and ban_of_network(key) == "" then
        new[key], last, count = true, key, count + 1
      end
    end
    local networks = count > 0 and redis.call("HGETALL", key_at(NETWORKS)) or {}
    for at = 2, #networks, 2 do
      if end_of(networks[at]) > now then
        count = count + 1
      end
    end
    return count > most and last or ""
  end

  -- Store bans of single keys, but those that have ended; each has three arguments: the key, the row, and 1 for a network.
  -- `version` names the new version of the list of networks. If `replaces` is 1, other bans of the keys end; else a ban that
  -- lasts as long stays. Return how many have not ended, and ""; where more than `most` networks would be banned, store none,
  -- and return 0 and the key of one.
  function commands.put(version, replaces, most, ...)
    local bans = { ... }
    local refused = network_beyond(tonumber(most), bans)
    if refused ~= "" then
      return { 0, refused }
    end
    local in_force = 0
    for at = 1, #bans, 3 do
      local key, row, is_network = unpack(bans, at, at + 2)
      local windows = key_at(FIRST + (at - 1) / 3)
      local name, field = windows, BAN
      if is_network == "1" then
        name, field = key_at(NETWORKS), key
      end
      if replaces == "1" then
        redis.call("ZREM", key_at(INDEX), key)
        remove_ban(windows)
      end
      local before = replaces == "0" and redis.call("HGET", name, field)
      if end_of(row) > now then
        in_force = in_force + 1
      end
      if end_of(row) > now and (not before or end_of(row) > end_of(before)) then
        put(name, field, row)
        add_to_index(key, row)
        if is_network == "1" then
          set_meta("networks", version)
        end
      end
    end
    trim_index()
    return { in_force, "" }
  end

  -- Charge strikes, unless the key is banned, or a ban that a shadow policy reported would be in force. Return the units,
  -- which are 0 where nothing was charged, and the row in the field `level`.
  function commands.strike(key, packed, level, is_shadow, units)
    local struck, limit = key_at(FIRST + 1), limit_of(packed)
    local field = sub(packed, 1, FIELD_BYTES)
    local stored = redis.call("HMGET", struck, field, level)
    local window, before = stored[1] or "", stored[2] or ""
    if ban_in_force(key_at(FIRST)) ~= "" or ban_of_network(key) ~= "" then
      return { 0, before }
    end
    -- A level starts with its own end, and then has that of the ban that has left it.
    if is_shadow == "1" and #before >= 2 * ENDS_BYTES and (unpack_from("<i8", before, 1 + ENDS_BYTES)) > now then
      return { 0, before }
    end
    local w = ring.read(sub(window, limit.starts), limit)
    ring.charge(w, limit, tonumber(units))
    put(struck, field, pack("<i8", ring.expires(w, limit)) .. ring.pack(w))
    return { w.spent, before }
  end

  local LATE = 0
  local MADE = 1
  local FULL = 2

  -- Put the ban of a key, whose windows and strikes are the last keys: its row, or "" for a shadow ban. Reset the strikes
  -- in the field `strikes`. The level in the field `level` was `before`, and becomes `after`. Return LATE if another worker
  -- was faster, so that the key is banned, its level is another one, or its strikes are gone; and FULL if there are `most`
  -- bans.
  function commands.put_next(key, row, strikes, level, before, after, most)
    local windows, struck = key_at(FIRST), key_at(FIRST + 1)
    local stored = redis.call("HMGET", struck, strikes, level)
    if ban_in_force(windows) ~= "" or not stored[1] or (stored[2] or "") ~= before then
      return LATE
    end
    if row ~= "" then
      if count_bans() >= tonumber(most) then
        return FULL
      end
      add_to_index(key, row)
      put(windows, BAN, row)
      trim_index()
    end
    redis.call("HDEL", struck, strikes)
    put(struck, level, after)
    return MADE
  end

  -- Lift the ban of a key, whose windows and strikes are the last keys, and delete its strikes and levels; `version` names
  -- the new version of the network list. Return a number above 0 if the key had strikes or levels that had not expired, and
  -- the rows of its own ban and of that of a network, those that are in force.
  function commands.unban(key, version)
    local windows, struck = key_at(FIRST), key_at(FIRST + 1)
    local remembered = { #rows_in_force(struck) }
    for _, row in ipairs({ ban_in_force(windows), ban_of_network(key) }) do
      if row ~= "" then
        remembered[#remembered + 1] = row
      end
    end
    remove_ban(windows)
    redis.call("UNLINK", struck)
    redis.call("ZREM", key_at(INDEX), key)
    if redis.call("HDEL", key_at(NETWORKS), key) == 1 then
      set_meta("networks", version)
    end
    return remembered
  end

  -- Return which keys the server evicts when it is full, "noeviction" for none; "" if the user may not know.
  local function eviction()
    local memory = redis.pcall("INFO", "memory")
    if type(memory) ~= "string" then
      return ""
    end
    if memory:find("\nmaxmemory:0\r") then -- it is never full
      return "noeviction"
    end
    return memory:match("\nmaxmemory_policy:([a-z-]+)") or ""
  end

  -- Return the number of bans; the identity of the data; if `asks_memory` is 1, which keys the server evicts when it is full;
  -- the version of the network list; the networks with their bans if the version is not `known`; and how the worker before has
  -- made names. If the data has no identity, it becomes `begins`, unless that is "", as for a tool; `naming` is that of others
  -- from now on, unless a tool asks.
  function commands.poll(begins, asks_memory, known, naming)
    local meta = redis.call("HMGET", key_at(META), "networks", "life", "naming")
    local version, life, naming_before = meta[1] or "", meta[2] or "", meta[3] or ""
    if life == "" and begins ~= "" then
      life = set_meta("life", begins)
    end
    if begins ~= "" and naming_before ~= naming then
      redis.pcall("HSET", key_at(META), "naming", naming) -- a server out of memory, or a replica, still answers
    end
    local policy = asks_memory == "1" and eviction() or ""
    local networks, ended = {}, 0
    if version ~= known then
      networks, ended = rows_in_force(key_at(NETWORKS))
    end
    if ended > 0 and begins ~= "" then -- workers that know them would go on to refuse them if the clock were set back
      redis.pcall("HSET", key_at(META), "networks", begins)
      version = redis.call("HGET", key_at(META), "networks") or ""
    end
    return { count_bans(), life, policy, version, networks, naming_before }
  end

  return commands
end
