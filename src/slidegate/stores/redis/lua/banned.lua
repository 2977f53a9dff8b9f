-- The ban of a key is the field "b" of the hash with its windows, so that one Redis key has all that a request needs. It
-- starts with the end of the ban (-1 for never); the rest belongs to core/bans. The strikes and levels of a key are in a hash
-- of their own, with a field for each policy, and start with the time at which they expire.

local BAN = "b"

-- Return a row that starts with its end, -1 for never; "" if it has ended, and then it is deleted. One that is too short for
-- an end is no row of ours: workers read it, and name it in the log.
local function row_in_force(name, field, row)
  local ends = #row < ENDS_BYTES and -1 or unpack_from("<i8", row)
  if ends >= 0 and now >= ends then
    redis.pcall("HDEL", name, field) -- a server out of memory, or a replica, still answers
    return ""
  end
  return row
end

-- Return the row of a key's ban in force; "" if there is none.
local function ban_in_force(name)
  local row = redis.call("HGET", name, BAN)
  return row and row_in_force(name, BAN, row) or ""
end
