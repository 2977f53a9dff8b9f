-- The ban of a key is the field "b" of the hash with its windows, so that one key of Redis says all about a request, also
-- while its slot is on the way to another node. It begins with its end, -1 for never, and its beginning. What else it says,
-- and the strike records in a hash of their own, one for each policy, is decided in core/bans and is nothing to the scripts.

local BAN = "b"

-- The ban of a key that is in force, as it is stored; "" where there is none. A server whose clock was set back begins the
-- ban anew: it lasts no longer than it was meant to. One that is over goes, so that no such step brings it back.
local function ban_in_force(name, now)
  local row = redis.call("HGET", name, BAN)
  if not row then
    return ""
  end
  local ends, made = unpack_from("<i8i8", row)
  if made > now then
    ends = ends < 0 and ends or ends - made + now
    row = pack("<i8i8", ends, now) .. sub(row, 17)
    redis.pcall("HSET", name, BAN, row)
  end
  if ends >= 0 and now >= ends then
    redis.pcall("HDEL", name, BAN)
    return ""
  end
  return row
end

-- Let a key live for so long at least.
local function live_for(name, left_ms)
  if redis.call("PTTL", name) < left_ms then
    redis.call("PEXPIRE", name, left_ms)
  end
end

-- The server's time, or that of a test.
local function time_of(given)
  local now = tonumber(given)
  if now < 0 then
    local clock = redis.call("TIME")
    now = clock[1] * 1000000 + clock[2]
  end
  return now
end

-- How many bans have not ended, by the list of their keys.
local function count_bans(index, now)
  return redis.call("ZCOUNT", index, string.format("(%.0f", now), "+inf")
end
