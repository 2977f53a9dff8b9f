-- The ban of a key is the field "b" of the hash with its windows, so that one key of Redis says all about a request, also
-- while its slot is on the way to another node. A stored ban begins with the latest moment at which somebody looked at it;
-- behind that stands its row: its end, -1 for never, its beginning, and what is decided in core/bans and is nothing to the
-- scripts, as are the strike records, which lie in a hash of their own, one for each policy.

local BAN = "b"
local MOMENT_BYTES, LOOK_EVERY_US = 8, 100000

-- The row of a stored ban, a field of a hash; "" where it is over. Where the server's clock was set back, its moments go
-- back with it, so that it lasts as long as it would have. One that is over goes, so that no such step brings it back.
local function row_in_force(name, field, stored, now)
  local seen, ends, made = unpack_from("<i8i8i8", stored)
  local row = sub(stored, MOMENT_BYTES + 1)
  if now < seen then
    ends = ends < 0 and ends or ends - seen + now
    row = pack("<i8i8", ends, made - seen + now) .. sub(row, 2 * MOMENT_BYTES + 1)
  end
  if ends >= 0 and now >= ends then
    redis.pcall("HDEL", name, field)
    return ""
  end
  if now < seen or now >= seen + LOOK_EVERY_US then
    redis.pcall("HSET", name, field, pack("<i8", now) .. row)
  end
  return row
end

-- The row of the ban of a key that is in force; "" where there is none.
local function ban_in_force(name, now)
  local stored = redis.call("HGET", name, BAN)
  return stored and row_in_force(name, BAN, stored, now) or ""
end
