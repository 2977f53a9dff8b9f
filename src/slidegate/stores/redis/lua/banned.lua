-- The ban of a key is the field "b" of the hash with its windows, so that one Redis key has all that a request needs, even
-- while its slot migrates to another node. A stored ban starts with the time at which a script last checked it. Its row
-- follows: the end (-1 for never), the start, and data that is opaque to the scripts and belongs to core/bans. So are the
-- strike records, which are in a separate hash, with a field for each policy.

local BAN = "b"
local MOMENT_BYTES, LOOK_EVERY_US = 8, 100000

-- Return the row of a stored ban; "" if it has ended. If the server's clock was set back, its times are shifted back too,
-- so that its remaining time does not change. An ended ban is deleted, so that such a step cannot revive it.
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

-- Return the row of a key's ban in force; "" if there is none.
local function ban_in_force(name, now)
  local stored = redis.call("HGET", name, BAN)
  return stored and row_in_force(name, BAN, stored, now) or ""
end
