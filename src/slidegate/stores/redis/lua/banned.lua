-- Bans at rest: in the hash `list`, a ban for each key. Its field "" says of which kinds they are, and how many of each:
-- "4/24=2 key=1" are two networks with prefixes of 24 bits, and a key that is no network. Who knows the kinds works out
-- under which keys the bans of a client would stand, an address under one for each length in use.

local KINDS = ""
local LIFE_BYTES = 16

-- Which life of the data this is, and the number of the last change that workers have to forget answers for; "" where
-- the data has no life yet, or was lost.
local function state_of(life, number)
  return life and life ~= "" and life .. (number or 0) or ""
end

local function kinds_of(list)
  return redis.call("HGET", list, KINDS) or ""
end

local function unpack_ban(key, row)
  local ban, from = { key = key }, nil
  ban.made, ban.ends, ban.wall, ban.prolong, ban.level, ban.by, from = unpack_from("<i8i8i8i8I4Hc0", row)
  ban.reason = sub(row, from)
  return ban
end

local function is_over_at(ban, now, wall)
  return ban.ends >= 0 and (now >= ban.ends or wall >= ban.wall + ban.ends - ban.made)
end

-- The bans' time, and how far it is ahead of the server's. It never runs back, see core/bans/strikes.py: where the
-- server's does, the lead grows by as much, for all workers.
local function time_of_bans(meta, wall, ahead, latest)
  if wall + ahead < latest then
    ahead = latest - wall
    redis.call("HSET", meta, "ahead", string.format("%.0f", ahead))
  end
  return wall + ahead, ahead
end

-- Look for bans under the keys of a request, packed at a place of `packed`. Answers with the time, key and row of each
-- that is in force; with how many there are; and with the place of the next request.
local function find_bans(list, packed, at, now, wall)
  local keys, told, many, found = {}, pack("<i8", now), nil, 0
  many, at = unpack_from("<H", packed, at)
  for place = 1, many do
    keys[place], at = unpack_from("<Hc0", packed, at)
  end
  for place, row in ipairs(many > 0 and redis.call("HMGET", list, unpack(keys)) or {}) do
    if row and not is_over_at(unpack_ban(keys[place], row), now, wall) then
      told, found = told .. pack("<HHc0", #row, #keys[place], keys[place]) .. row, found + 1
    end
  end
  return told, found, at
end
